"""What the protocol asks of a connection, as checks that say what is wrong: for a rule of one's own."""

from __future__ import annotations

import copy
import itertools
import logging
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnres.connections import make_connection
from attnres.connections._connection import Connection, Sublayer, Values, output_of
from attnres.connections._files import told
from attnres.connections._mixing import mixing_matrix
from attnres.connections._reads import mean_read, mixture
from attnres.errors import UsageError, first_line
from attnres.torch_private import times_changed

DIM, SITES = 48, 7
Make = Callable[[], Connection]


def check_linear(connection: Connection) -> None:
    """Raise UsageError unless `start`, `gather` and `scatter` are linear once the weights of a token are fixed, in
    training and behind `eval()`.

    The depth matrix of a rule for which they are not says nothing.
    """
    for training in (False, True):
        _check_linear_once(connection.train(training))


def _check_linear_once(connection: Connection) -> None:
    sublayers = random_sublayers(connection)
    with torch.no_grad():
        x, x_other = _noise((2, connection.dim), 1), _noise((2, connection.dim), 2)
        values, others = connection.start(x), connection.start(x_other)
        _same("start", -1, connection.start(x + 2 * x_other), _combined(values, others))
        for site, sublayer in enumerate([*sublayers, None]):
            weights = connection.weigh(values, site)
            other = tuple(_noise(value.shape, 3) for value in values)
            both = _combined(values, other)
            h, h_other = (_reads(connection.gather(v, weights, site)) for v in (values, other))
            _same("gather", site, _reads(connection.gather(both, weights, site)), _combined(h, h_other))
            if sublayer is None:
                return
            y, y_other = sublayer(*h), _noise(x.shape, 4)
            weights = connection.weigh_output(values, weights, site, y)

            def scatter(v: Values, h: tuple[Tensor, ...], y: Tensor, weights=weights, site=site) -> Values:
                return connection.scatter(v, weights, site, mixture(h), y)

            after = scatter(values, h, y)
            expected = _combined(after, scatter(other, h_other, y_other))
            _same("scatter", site, scatter(both, _combined(h, h_other), y + 2 * y_other), expected)
            values = after


def check_apart(connection: Connection) -> None:
    """Raise UsageError if what one token reads depends on another token, on another sequence of the batch, or on its
    place among them, in training or behind `eval()`.

    A rule that reads a later token predicts it; one that reads an earlier one, or counts them, generates something else
    token by token.
    """
    for training in (False, True):
        whole = _whole(connection.train(training))
        x, others = (_noise((3, 5, connection.dim), seed) for seed in (0, 1))
        others[1, 2] = x[1, 2]

        def read(tokens: Tensor, seed: int = 0, whole=whole) -> Tensor:
            torch.manual_seed(seed)  # a rule may draw at random
            return whole(tokens)

        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            among, elsewhere = read(x), read(others)
            _require(
                _close(among[1, 2], elsewhere[1, 2]),
                "what a token reads depends on other tokens of its text, or on other texts",
            )
            if torch.equal(among, read(x, seed=1)):  # else alone it would draw something else
                _require(
                    _close(among[1, 2], read(x[1:2, 2:3])[0, 0]),
                    "what a token reads depends on its place in the text, or on how much text there is; one that is "
                    "generated comes alone",
                )


def check_rule(connection: str, dim: int) -> None:
    """Raise UsageError unless the connection is linear where it must be and keeps tokens apart: on a small one with
    random parameters.

    dim: the width that it is meant for, taken where its options do not fit the small one's.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            make_connection(connection, DIM, SITES)
        except UsageError:
            make_connection(connection, dim, SITES)
            small = dim
        else:
            small = DIM
        try:
            rule = randomised(lambda: make_connection(connection, small, SITES))
            check_linear(rule)
            check_apart(rule)
        except UsageError as error:
            raise UsageError(f"connection {connection}: {error}") from None
        except (Exception, SystemExit) as error:
            if ":" not in connection:
                raise
            raise UsageError(f"connection {connection} fails with {told(error)}; attnres check says where") from error


def findings(make: Make) -> Iterator[tuple[str, str | None]]:
    """Run all checks: what each asks for, and what was found wrong, or None."""
    for check in CHECKS:
        problem = None
        try:
            check(make)
        except UsageError as error:
            problem = str(error)
        except (Exception, SystemExit) as error:  # the rule's own code fails
            problem = told(error)
        yield (check.__doc__ or "").rstrip("."), problem


def randomised(make: Make) -> Connection:
    """Make the connection with every parameter at random, so that no term hides behind its start at zero."""
    connection = make()
    with torch.no_grad():
        for seed, parameter in enumerate(connection.parameters()):
            parameter.copy_(0.5 * _noise(parameter.shape, seed))
    return connection


def random_sublayers(connection: Connection) -> list[Sublayer]:
    """Make non-linear sublayers of order one, in the dtype of what they read."""
    matrices = [_noise((connection.dim,) * 2, site) / connection.dim**0.5 for site in range(connection.sites)]
    return [lambda *h, m=m: torch.tanh(sum(h) @ m.to(h[0].dtype)) for m in matrices]


def starts(make: Make) -> None:
    """A new one is in float32, and gives finite outputs and gradients, whatever the shape."""
    for shape in ((2, 3), (0, 4), ()):
        connection = make()
        for name, parameter in connection.named_parameters():
            _require(parameter.dtype == torch.float32, f"{name} is {parameter.dtype}")
        x = _noise((*shape, connection.dim), 0).requires_grad_()
        h = _whole(connection)(x)
        h.sum().backward()
        _require(h.shape == x.shape, f"the readout of {list(x.shape)} is {list(h.shape)}")
        _require(x.grad is not None, "no gradient reaches the embedding")
        _require(bool(h.isfinite().all() and x.grad.isfinite().all()), "it is not finite")  # type: ignore[union-attr]


def linear(make: Make) -> None:
    """start, gather and scatter are linear in the values once the weights are fixed."""
    check_linear(randomised(make))


def apart(make: Make) -> None:
    """What a token reads depends on that token alone: on no later or earlier one, no place, and no other sequence."""
    check_apart(randomised(make))


def learns(make: Make) -> None:
    """Every parameter gets a gradient, and what every sublayer returns reaches the readout."""
    connection = randomised(make)
    for name, held in _kept(connection).items():
        if any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in held):
            raise UsageError(f"{name} is no parameter, and no optimizer finds it; make it an nn.ParameterList")
    outputs = []
    values = connection.start(_noise((2, DIM), 0))
    for site, sublayer in enumerate(random_sublayers(connection)):
        weights, h = connection.mix(values, site)
        outputs.append(output_of(sublayer, h).requires_grad_())
        outputs[-1].retain_grad()
        values = connection.absorb(values, weights, site, h, outputs[-1])
    h = connection.readout(values)
    if h.requires_grad:
        (h * _noise(h.shape, 1)).sum().backward()
    for name, parameter in connection.named_parameters():
        _require(parameter.grad is not None, f"none reaches {name}: what computes with it leaves autograd or is unused")
    for site, y in enumerate(outputs):
        _require(y.grad is not None and bool(y.grad.any()), f"what sublayer {site} returns does not")


def matrix(make: Make) -> None:
    """The depth matrix times the sources is what every site reads."""
    connection, x = randomised(make), _noise((2, 3, DIM), 0)
    sources, inputs = [x], []
    values = connection.start(x)
    for site, sublayer in enumerate(random_sublayers(connection)):
        h = connection.mix(values, site)[1]
        inputs.append(mean_read(h))
        sources.append(output_of(sublayer, h))
        values = connection.run(values, [sublayer], site)
    inputs.append(connection.readout(values))
    found = mixing_matrix(connection, x, random_sublayers(connection), per_channel=True)
    rebuilt = torch.einsum("btlid,ibtd->lbtd", found, torch.stack(sources))
    for site, (one, other) in enumerate(zip(rebuilt, inputs, strict=True)):
        _require(_close(one, other), f"it is not, at site {site}")


def pure(make: Make) -> None:
    """No tensor in values is changed, and nothing is kept between two batches taken in turns."""
    xs = [_noise((2, DIM), 0), _noise((2, DIM), 1)]
    for training, steps in itertools.product((True, False), (_site_by_site, _step_by_step)):
        connection = randomised(make).train(training)
        with torch.set_grad_enabled(training):
            expected = [_whole(randomised(make).train(training))(x) for x in xs]
            before = _kept(connection)
            found = steps(connection, random_sublayers(connection), xs)
        changed = ", ".join(_changed(connection, before))
        kept = f" by the {changed} that it keeps on itself" if changed else ""
        for h, right in zip(found, expected, strict=True):
            _require(_close(h, right), f"two batches disturb each other{kept}; put what depth carries into values")


def splits(make: Make) -> None:
    """run in two parts, split at any site, equals run in one."""
    connection, x = randomised(make), _noise((2, DIM), 0)
    sublayers, expected = random_sublayers(connection), _whole(connection)(x)
    for site in range(SITES + 1):
        values = connection.run(connection.start(x), sublayers[:site])
        values = connection.run(values, sublayers[site:], first=site)
        _require(_close(connection.readout(values), expected), f"it does not, split at site {site}")


def fused(make: Make) -> None:
    """mix and run, where they are overridden, equal weigh, gather and scatter, gradients included."""
    connection = randomised(make)
    plain = copy.deepcopy(connection)
    plain.mix = lambda values, site: Connection.mix(plain, values, site)
    plain.run = lambda values, sublayers, first=0: Connection.run(plain, values, sublayers, first)
    _equal_gradients(connection, _whole(connection), plain, _whole(plain))


def recomputed(make: Make) -> None:
    """Activation checkpointing changes nothing, gradients included."""
    connection = randomised(make)
    sublayers = random_sublayers(connection)

    def forward(x: Tensor) -> Tensor:
        values = connection.start(x)
        for first, end in itertools.pairwise([*range(0, SITES, 2), SITES]):
            values = checkpoint(connection.run, values, sublayers[first:end], first, use_reentrant=False)
        return connection.readout(values)

    _equal_gradients(connection, forward, connection, _whole(connection))


def compiled(make: Make) -> None:
    """torch.compile takes it as one graph, and changes nothing."""
    connection = randomised(make)
    torch.compiler.reset()
    whole = torch.compile(_whole(connection), fullgraph=True, backend="aot_eager")
    disabled = logging.root.manager.disable
    logging.disable()  # torch logs whole tracebacks, which would stand among the verdicts
    try:
        _equal_gradients(connection, whole, connection, _whole(connection))
    except Exception as error:
        explained = re.search("Explanation: (.+)", str(error))
        raise UsageError(explained[1] if explained else first_line(error)) from error
    finally:
        logging.disable(disabled)


def gradients(make: Make) -> None:
    """Gradients in float32 are those in float64."""
    connection = randomised(make)
    exact = copy.deepcopy(connection).double()
    _equal_gradients(connection, _whole(connection), exact, _whole(exact))


def per_site(make: Make) -> None:
    """No two sites share a parameter, so that a pipeline stage can keep its own alone."""
    connection, seen = randomised(make), set()
    sublayers = random_sublayers(connection)
    values = tuple(value.detach() for value in connection.start(_noise((2, DIM), 0)))
    for site in range(SITES + 1):
        connection.zero_grad(set_to_none=True)
        after = connection.run(values, [sublayers[site]], site) if site < SITES else (connection.readout(values),)
        if any(value.requires_grad for value in after):
            torch.stack([value.sum() for value in after]).sum().backward()
        used = {name for name, parameter in connection.named_parameters() if parameter.grad is not None}
        _require(not used & seen, f"site {site} uses {', '.join(sorted(used & seen))}, as an earlier one does")
        seen |= used
        values = tuple(value.detach() for value in after)


def bfloat16(make: Make) -> None:
    """A bfloat16 stream stays bfloat16, and close to float32."""
    connection, x = randomised(make), _noise((2, 3, DIM), 0)
    exact, rounded = _whole(connection)(x), _whole(connection)(x.bfloat16())
    _require(rounded.dtype == torch.bfloat16, f"it becomes {rounded.dtype}; round sums with .to(x.dtype)")
    _require(bool((rounded.float() - exact).norm() < 0.1 * exact.norm()), "it is more than 10% off")


def saved(make: Make) -> None:
    """State that is saved, and loaded into one that was in use, gives the same."""
    connection, twin, x = randomised(make), make(), _noise((2, DIM), 0)
    _whole(twin)(x)
    twin.load_state_dict(connection.state_dict())
    _require(torch.equal(_whole(twin)(x), _whole(connection)(x)), "it does not")


CHECKS = (
    starts,
    linear,
    apart,
    learns,
    matrix,
    pure,
    splits,
    fused,
    recomputed,
    gradients,
    per_site,
    bfloat16,
    saved,
    compiled,
)


def _whole(connection: Connection) -> Callable[[Tensor], Tensor]:
    sublayers = random_sublayers(connection)
    return lambda x: connection.readout(connection.run(connection.start(x), sublayers))


def _site_by_site(connection: Connection, sublayers: list[Sublayer], xs: list[Tensor]) -> list[Tensor]:
    """The readouts of batches that take turns at every site."""
    states = list(map(connection.start, xs))
    for site, sublayer in enumerate(sublayers):
        for batch, values in enumerate(states):
            before = [value.clone() for value in values]
            states[batch] = connection.run(values, [sublayer], site)
            _require(all(map(torch.equal, values, before)), f"site {site} changes its values in place")
    return list(map(connection.readout, states))


def _step_by_step(connection: Connection, sublayers: list[Sublayer], xs: list[Tensor]) -> list[Tensor]:
    """The readouts of batches that take turns at every step of every site."""
    states = list(map(connection.start, xs))
    for site, sublayer in enumerate(sublayers):
        weights = [connection.weigh(values, site) for values in states]
        hs = [connection.gather(values, w, site) for values, w in zip(states, weights, strict=True)]
        parts = list(zip(states, weights, hs, [output_of(sublayer, h) for h in hs], strict=True))
        weights = [connection.weigh_output(values, w, site, y) for values, w, _, y in parts]
        states = [
            connection.scatter(values, w, site, h, y) for (values, _, h, y), w in zip(parts, weights, strict=True)
        ]
    return list(map(connection.readout, states))


def _kept(connection: Connection) -> dict[str, list[Any]]:
    """What the connection and its parts hold beside parameters, by name, as objects that are others when it changes."""
    held = {}
    for part_name, part in connection.named_modules():
        own = {name: value for name, value in vars(part).items() if name not in vars(nn.Module())}
        for name, value in {**own, **dict(part.named_buffers(recurse=False))}.items():
            content = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            changes = [times_changed([value])] if isinstance(value, Tensor) else []
            held[f"{part_name}.{name}".lstrip(".")] = [*content, *changes]
    return held


def _changed(connection: Connection, before: dict[str, list[Any]]) -> list[str]:
    """Name what it holds that is no longer what `_kept` found."""
    return [
        name
        for name, now in _kept(connection).items()
        if len(then := before.get(name, [])) != len(now) or not all(map(operator.is_, then, now))
    ]


def _equal_gradients(one: Connection, forward: Callable, other: Connection, reference: Callable) -> None:
    expected = _outputs(other, reference)  # first, so that a rule that fails by itself says so in its own words
    actual = _outputs(one, forward)
    _require(_close(actual[0], expected[0]), "the outputs differ")
    largest = max(tensor.norm() for tensor in expected)
    names = ["the embedding", *(name for name, _ in one.named_parameters())]
    for name, a, b in zip(names, actual[1:], expected[1:], strict=True):
        error = (a.double() - b.double()).norm()
        _require(bool(error <= 1e-4 * b.norm() + 1e-6 * largest), f"the gradient of {name} differs")


def _outputs(connection: Connection, forward: Callable) -> list[Tensor]:
    """The readout, and the gradients of the embedding and of each parameter."""
    dtype = next((parameter.dtype for parameter in connection.parameters()), torch.float32)
    x = _noise((2, 3, DIM), 0).to(dtype).requires_grad_()
    connection.zero_grad(set_to_none=True)
    h = forward(x)
    (h * torch.linspace(-1, 1, h.numel(), dtype=h.dtype).view_as(h)).sum().backward()
    assert x.grad is not None
    return [h.detach(), x.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in connection.parameters())]


def _reads(h: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return h if isinstance(h, tuple) else (h,)


def _combined(one: Values, other: Values) -> Values:
    return tuple(a + 2 * b for a, b in zip(one, other, strict=True))


def _same(step: str, site: int, found: Values, expected: Values) -> None:
    where = f" at site {site}" if site >= 0 else ""
    for a, b in zip(found, expected, strict=True):
        _require(_close(a, b), f"{step} is not linear{where}; what is not linear in the values belongs in weigh")


def _close(one: Tensor, other: Tensor) -> bool:
    other = other.to(one.dtype)
    scale = other.abs().max().item() if other.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * max(1.0, scale))


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise UsageError(problem)


def _noise(shape: tuple[int, ...] | torch.Size, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

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

from attnres.connections.base import Connection, Sublayer, Values, output_of
from attnres.connections.files import told
from attnres.connections.matrix import mixing_matrix
from attnres.connections.reads import mean_read
from attnres.connections.sound import (
    DIM,
    SITES,
    check_apart,
    check_linear,
    close,
    noise,
    random_sublayers,
    randomised,
    require,
    whole_pass,
)
from attnres.errors import UsageError, first_line
from attnres.torch_private import times_changed

Make = Callable[[int], Connection]
"""sites -> a new connection of width DIM."""


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


def travels(make: Make) -> None:
    """start and scatter return a tuple of tensors, and the readout can be weighed as the site behind the last one."""
    connection = make(SITES)
    values = connection.start(noise((2, DIM), 0))
    _require_tuple("start", values)
    for site, sublayer in enumerate(random_sublayers(connection)):
        weights, h = connection.mix(values, site)
        values = connection.absorb(values, weights, site, h, output_of(sublayer, h))
        _require_tuple("scatter", values)
    try:
        connection.readout(values)
    except (Exception, SystemExit) as error:
        raise UsageError(f"the readout, site {SITES} of {SITES} sublayers, fails: {told(error)}") from error


def _require_tuple(method: str, values: Any) -> None:
    found = type(values).__name__
    require(isinstance(values, tuple), f"{method} returns a {found}; one value is written (value,), with its comma")


def starts(make: Make) -> None:
    """A new one is in float32, and gives finite outputs and gradients, whatever the shape."""
    for shape in ((2, 3), (0, 4), ()):
        connection = make(SITES)
        for name, parameter in connection.named_parameters():
            require(parameter.dtype == torch.float32, f"{name} is {parameter.dtype}")
        x = noise((*shape, connection.dim), 0).requires_grad_()
        h = whole_pass(connection)(x)
        h.sum().backward()
        require(h.shape == x.shape, f"the readout of {list(x.shape)} is {list(h.shape)}")
        require(x.grad is not None, "no gradient reaches the embedding")
        require(bool(h.isfinite().all() and x.grad.isfinite().all()), "it is not finite")  # type: ignore[union-attr]


def any_depth(make: Make) -> None:
    """It takes any number of sublayers."""
    for sites in (1, 2, SITES + 1, 3 * SITES):
        try:
            whole_pass(make(sites))(noise((2, DIM), 0))
        except (Exception, SystemExit) as error:
            raise UsageError(f"with {sites} it fails: {told(error)}") from error


def linear(make: Make) -> None:
    """start, gather and scatter are linear in the values once the weights are fixed."""
    check_linear(randomised(make(SITES)))


def apart(make: Make) -> None:
    """What a token reads depends on that token alone: on no later or earlier one, no place, and no other sequence."""
    check_apart(randomised(make(SITES)))


def learns(make: Make) -> None:
    """Every parameter gets a gradient, and what every sublayer returns reaches the readout."""
    connection = randomised(make(SITES))
    for name, held in _kept(connection).items():
        if any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in held):
            raise UsageError(f"{name} is no parameter, and no optimizer finds it; make it an nn.ParameterList")
    outputs = []
    values = connection.start(noise((2, DIM), 0))
    for site, sublayer in enumerate(random_sublayers(connection)):
        weights, h = connection.mix(values, site)
        outputs.append(output_of(sublayer, h).requires_grad_())
        outputs[-1].retain_grad()
        values = connection.absorb(values, weights, site, h, outputs[-1])
    h = connection.readout(values)
    if h.requires_grad:
        (h * noise(h.shape, 1)).sum().backward()
    for name, parameter in connection.named_parameters():
        require(parameter.grad is not None, f"none reaches {name}: what computes with it leaves autograd or is unused")
    for site, y in enumerate(outputs):
        require(y.grad is not None and bool(y.grad.any()), f"what sublayer {site} returns does not")


def matrix(make: Make) -> None:
    """The depth matrix times the sources is what every site reads."""
    connection, x = randomised(make(SITES)), noise((2, 3, DIM), 0)
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
        require(close(one, other), f"it is not, at site {site}")


def pure(make: Make) -> None:
    """No tensor in values is changed, and nothing is kept between two batches taken in turns."""
    xs = [noise((2, DIM), 0), noise((2, DIM), 1)]
    for training, steps in itertools.product((True, False), (_site_by_site, _step_by_step)):
        connection = randomised(make(SITES)).train(training)
        with torch.set_grad_enabled(training):
            expected = [whole_pass(randomised(make(SITES)).train(training))(x) for x in xs]
            before = _kept(connection)
            found = steps(connection, random_sublayers(connection), xs)
        changed = ", ".join(_changed(connection, before))
        kept = f" by the {changed} that it keeps on itself" if changed else ""
        for h, right in zip(found, expected, strict=True):
            require(close(h, right), f"two batches disturb each other{kept}; put what depth carries into values")


def splits(make: Make) -> None:
    """run in two parts, split at any site, equals run in one."""
    connection, x = randomised(make(SITES)), noise((2, DIM), 0)
    sublayers, expected = random_sublayers(connection), whole_pass(connection)(x)
    for site in range(SITES + 1):
        values = connection.run(connection.start(x), sublayers[:site])
        values = connection.run(values, sublayers[site:], first=site)
        require(close(connection.readout(values), expected), f"it does not, split at site {site}")


def fused(make: Make) -> None:
    """mix and run, where they are overridden, equal weigh, gather and scatter, gradients included."""
    connection = randomised(make(SITES))
    plain = copy.deepcopy(connection)
    plain.mix = lambda values, site: Connection.mix(plain, values, site)
    plain.run = lambda values, sublayers, first=0: Connection.run(plain, values, sublayers, first)
    _equal_gradients(connection, whole_pass(connection), plain, whole_pass(plain))


def recomputed(make: Make) -> None:
    """Activation checkpointing changes nothing, gradients included."""
    connection = randomised(make(SITES))
    sublayers = random_sublayers(connection)

    def forward(x: Tensor) -> Tensor:
        values = connection.start(x)
        for first, end in itertools.pairwise([*range(0, SITES, 2), SITES]):
            values = checkpoint(connection.run, values, sublayers[first:end], first, use_reentrant=False)
        return connection.readout(values)

    _equal_gradients(connection, forward, connection, whole_pass(connection))


def compiled(make: Make) -> None:
    """torch.compile takes it as one graph, and changes nothing."""
    connection = randomised(make(SITES))
    torch.compiler.reset()
    whole = torch.compile(whole_pass(connection), fullgraph=True, backend="aot_eager")
    disabled = logging.root.manager.disable
    logging.disable()  # torch logs whole tracebacks, which would stand among the verdicts
    try:
        _equal_gradients(connection, whole, connection, whole_pass(connection))
    except Exception as error:
        explained = re.search("Explanation: (.+)", str(error))
        raise UsageError(explained[1] if explained else first_line(error)) from error
    finally:
        logging.disable(disabled)


def gradients(make: Make) -> None:
    """Gradients in float32 are those in float64."""
    connection = randomised(make(SITES))
    exact = copy.deepcopy(connection).double()
    _equal_gradients(connection, whole_pass(connection), exact, whole_pass(exact))


def per_site(make: Make) -> None:
    """No two sites share a parameter, so that a pipeline stage can keep its own alone."""
    connection, seen = randomised(make(SITES)), set()
    sublayers = random_sublayers(connection)
    values = tuple(value.detach() for value in connection.start(noise((2, DIM), 0)))
    for site in range(SITES + 1):
        connection.zero_grad(set_to_none=True)
        after = connection.run(values, [sublayers[site]], site) if site < SITES else (connection.readout(values),)
        if any(value.requires_grad for value in after):
            torch.stack([value.sum() for value in after]).sum().backward()
        used = {name for name, parameter in connection.named_parameters() if parameter.grad is not None}
        require(not used & seen, f"site {site} uses {', '.join(sorted(used & seen))}, as an earlier one does")
        seen |= used
        values = tuple(value.detach() for value in after)


def bfloat16(make: Make) -> None:
    """A bfloat16 stream stays bfloat16, close to float32, and follows the parameters as finely."""
    connection, x = randomised(make(SITES)), noise((2, 3, DIM), 0)
    exact, rounded = whole_pass(connection)(x), whole_pass(connection)(x.bfloat16())
    require(rounded.dtype == torch.bfloat16, f"it becomes {rounded.dtype}; round sums with .to(x.dtype)")
    # Of most tokens: rounding may turn a sharp choice of one into another's, which is no fault of the rule.
    off = (rounded.float() - exact).norm(dim=-1) / exact.norm(dim=-1)
    require(bool(off.median() < 0.1), "it is more than 10% off")
    values = connection.start(noise((512, DIM), 0).bfloat16())
    for site, sublayer in enumerate([*random_sublayers(connection), None]):
        _check_fine(connection, values, site)
        with torch.no_grad():
            values = values if sublayer is None else connection.run(values, [sublayer], site)


def saved(make: Make) -> None:
    """State that is saved, and loaded into one that was in use, gives the same."""
    connection, twin, x = randomised(make(SITES)), make(SITES), noise((2, DIM), 0)
    whole_pass(twin)(x)
    twin.load_state_dict(connection.state_dict())
    require(torch.equal(whole_pass(twin)(x), whole_pass(connection)(x)), "it does not")


CHECKS = (
    travels,
    starts,
    any_depth,
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


STEP = 2.0**-11
"""By how much of itself a parameter is moved: at most a quarter of the step between two numbers of bfloat16."""


def _check_fine(connection: Connection, values: Values, site: int) -> None:
    """Raise UsageError if one of the site's parameters, moved by STEP, moves more or less than it does in float32."""

    def outputs(dtype: torch.dtype) -> Tensor:
        """What the site reads and the values behind it, in one vector."""
        of_dtype = tuple(value.to(dtype) for value in values)
        weights, h = connection.mix(of_dtype, site)
        found = h if isinstance(h, tuple) else (h,)
        if site < connection.sublayers:
            y = noise(found[0].shape, 1).to(torch.bfloat16).to(dtype)
            found = (*found, *connection.absorb(of_dtype, weights, site, h, y))
        return torch.cat([output.float().flatten() for output in found])

    exact, named = outputs(torch.float32), dict(connection.named_parameters())
    grads = torch.autograd.grad(exact.sum(), list(named.values()), allow_unused=True) if exact.requires_grad else ()
    with torch.no_grad():
        rounded = outputs(torch.bfloat16)
        for (name, parameter), grad in zip(named.items(), grads, strict=False):
            if grad is None:
                continue
            kept = parameter.clone()
            parameter.mul_(1 + STEP)
            expected, found = outputs(torch.float32) - exact, outputs(torch.bfloat16) - rounded
            parameter.copy_(kept)
            # What rounding adds to each number is as often up as down, so that over many of them it cancels.
            error = 2.0**-9 * exact.norm() / (expected.norm() * exact.numel() ** 0.5)
            share = (found @ expected / expected.square().sum()).item()
            require(
                not error < 0.1 or abs(share - 1) < 0.5,
                f"{name} moves what site {site} gives {share:.2g} times as far as in float32; calculate in float32 (a "
                "weight without axes does not widen bfloat16: give it one)",
            )


def _site_by_site(connection: Connection, sublayers: list[Sublayer], xs: list[Tensor]) -> list[Tensor]:
    """The readouts of batches that take turns at every site."""
    states = list(map(connection.start, xs))
    for site, sublayer in enumerate(sublayers):
        for batch, values in enumerate(states):
            before = [value.clone() for value in values]
            states[batch] = connection.run(values, [sublayer], site)
            require(all(map(torch.equal, values, before)), f"site {site} changes its values in place")
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
    require(close(actual[0], expected[0]), "the outputs differ")
    largest = max(tensor.norm() for tensor in expected)
    names = ["the embedding", *(name for name, _ in one.named_parameters())]
    for name, a, b in zip(names, actual[1:], expected[1:], strict=True):
        error = (a.double() - b.double()).norm()
        require(bool(error <= 1e-4 * b.norm() + 1e-6 * largest), f"the gradient of {name} differs")


def _outputs(connection: Connection, forward: Callable) -> list[Tensor]:
    """The readout, and the gradients of the embedding and of each parameter."""
    dtype = next((parameter.dtype for parameter in connection.parameters()), torch.float32)
    x = noise((2, 3, DIM), 0).to(dtype).requires_grad_()
    connection.zero_grad(set_to_none=True)
    h = forward(x)
    (h * torch.linspace(-1, 1, h.numel(), dtype=h.dtype).view_as(h)).sum().backward()
    assert x.grad is not None
    return [h.detach(), x.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in connection.parameters())]

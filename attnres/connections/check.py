"""What the protocol requires of a connection, as checks for a custom rule.

Each check gets a function that makes a new connection, and raises UsageError.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attnres.connections.base import Connection, Sublayer, Values, output_of, reads_in
from attnres.connections.files import told
from attnres.connections.reads import mixture
from attnres.connections.registry import make_connection
from attnres.errors import UsageError

DIM, SITES = 48, 7
FAR = 64
"""How many times one value is added to another: streams grow over depth, and what is clamped there is not linear."""

Make = Callable[[int], Connection]
"""sublayers -> a new connection."""


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


def check_rule(connection: str, dim: int, sublayers: int) -> None:
    """Raise UsageError unless it passes the checks that every training run begins with, and a deep one gets to its
    readout."""
    with torch.random.fork_rng(devices=[]):
        deep = make_connection(connection, dim, sublayers)
        try:
            for check in (unchanged, linear, apart):
                check(lambda sites: make_connection(connection, dim, sites))
            with torch.no_grad():
                whole_pass(deep)(noise((2, dim), 0))
        except UsageError as error:
            raise UsageError(f"connection {connection}: {error}") from None
        except (Exception, SystemExit) as error:
            raise UsageError(f"connection {connection} fails with {told(error)}; attnres check says where") from error


def travels(make: Make) -> None:
    """start and scatter return a tuple of tensors, and the readout can be weighed as the site behind the last one."""
    connection = make(SITES)
    values = connection.start(noise((2, connection.dim), 0))
    _require_tuple("start", values)
    for site, sublayer in enumerate(random_sublayers(connection)):
        require(connection.value_count(site) in (len(values), None), f"value_count is wrong at site {site}")
        weights, h = connection.mix(values, site)
        values = connection.absorb(values, weights, site, h, output_of(sublayer, h))
        _require_tuple("scatter", values)
    connection.readout(values)


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


@torch.no_grad()
def linear(make: Make) -> None:
    """start, gather and scatter are linear in the values once the weights are fixed."""
    for training in (False, True):
        connection = randomised(make(SITES)).train(training)
        x, x_other = noise((2, connection.dim), 1), noise((2, connection.dim), 2)
        values, others = connection.start(x), connection.start(x_other)
        _same("start", -1, connection.start(x + FAR * x_other), _combined(values, others))
        for site, sublayer in enumerate([*random_sublayers(connection), None]):
            weights = connection.weigh(values, site)
            other = tuple(noise(value.shape, 3) for value in values)
            both = _combined(values, other)
            h, h_other, h_both = (reads_in(connection.gather(v, weights, site)) for v in (values, other, both))
            _same("gather", site, h_both, _combined(h, h_other))
            if sublayer is None:
                break
            y, y_other = sublayer(*h), noise(x.shape, 4)
            weights = connection.weigh_output(values, weights, site, y)
            after = connection.scatter(values, weights, site, mixture(h), y)
            after_other = connection.scatter(other, weights, site, mixture(h_other), y_other)
            after_both = connection.scatter(both, weights, site, mixture(_combined(h, h_other)), y + FAR * y_other)
            _same("scatter", site, after_both, _combined(after, after_other))
            values = after


def _combined(one: Values, other: Values) -> Values:
    return tuple(a + FAR * b for a, b in zip(one, other, strict=True))


def _same(step: str, site: int, found: Values, expected: Values) -> None:
    where = f" at site {site}" if site >= 0 else ""
    for a, b in zip(found, expected, strict=True):
        require(bool(a.isfinite().all()), f"{step} gives numbers that are not finite{where}")
        require(close(a, b), f"{step} is not linear{where}; what is not linear in the values belongs in weigh")


@torch.no_grad()
def apart(make: Make) -> None:
    """What a token reads depends on that token alone: on no later or earlier one, no place, and no other sequence."""
    for training in (False, True):
        connection = randomised(make(SITES)).train(training)
        whole = whole_pass(connection)
        x, others = (noise((4, 5, connection.dim), seed) for seed in (0, 1))
        text, place = 1, 3  # in no middle, where a rule that turns the text or the batch round finds the token itself
        others[text, place] = x[text, place]

        def read(tokens: Tensor, seed: int = 0, whole=whole) -> Tensor:
            torch.manual_seed(seed)  # a rule may draw at random
            return whole(tokens)

        with torch.random.fork_rng(devices=[]):
            among, elsewhere = read(x), read(others)
            require(
                close(among[text, place], elsewhere[text, place]),
                "what a token reads depends on other tokens of its text, or on other texts",
            )
            if torch.equal(among, read(x, seed=1)):  # else alone it would draw something else
                require(
                    close(among[text, place], read(x[text, place][None, None])[0, 0]),
                    "what a token reads depends on its place in the text, or on how much text there is; one that is "
                    "generated comes alone",
                )


def learns(make: Make) -> None:
    """Every parameter gets a gradient, and what every sublayer returns reaches the readout."""
    connection = randomised(make(SITES))
    for name, held in vars(connection).items():
        if isinstance(held, list | tuple) and any(isinstance(each, Tensor) and each.requires_grad for each in held):
            raise UsageError(f"{name} is no parameter, and no optimizer finds it; make it an nn.ParameterList")
    outputs = []
    values = connection.start(noise((2, connection.dim), 0))
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


@torch.no_grad()
def unchanged(make: Make) -> None:
    """No tensor that it is given is changed: autograd or a later site may still need it."""
    for training in (False, True):
        connection = randomised(make(SITES)).train(training)
        values = connection.start(noise((2, connection.dim), 0))
        for site, sublayer in enumerate(random_sublayers(connection)):
            given = [(value, value.clone()) for value in values]

            def watched(*h: Tensor, sublayer: Sublayer = sublayer, given: list = given) -> Tensor:
                y = sublayer(*h)
                given.extend((tensor, tensor.clone()) for tensor in (*h, y))
                return y

            values = connection.run(values, [watched], site)
            same = all(torch.equal(tensor, before) for tensor, before in given)
            require(same, f"site {site} changes in place what it was given; make a new tensor")


@torch.no_grad()
def pure(make: Make) -> None:
    """Nothing is kept between two batches taken in turns."""
    xs = [noise((2, DIM), 0), noise((2, DIM), 1)]
    for training in (True, False):
        expected = [whole_pass(randomised(make(SITES)).train(training))(x) for x in xs]
        connection = randomised(make(SITES)).train(training)
        states = list(map(connection.start, xs))
        for site, sublayer in enumerate(random_sublayers(connection)):
            mixed = [connection.mix(values, site) for values in states]
            states = [
                connection.absorb(values, weights, site, h, output_of(sublayer, h))
                for values, (weights, h) in zip(states, mixed, strict=True)
            ]
        for values, right in zip(states, expected, strict=True):
            require(
                close(connection.readout(values), right),
                "two batches disturb each other by what it keeps on itself; put what depth carries into values",
            )


def fused(make: Make) -> None:
    """mix and run, where they are overridden, equal weigh, gather and scatter, gradients included."""
    connection = randomised(make(SITES))
    plain = copy.deepcopy(connection)
    plain.mix = lambda values, site: Connection.mix(plain, values, site)
    plain.run = lambda values, sublayers, first=0: Connection.run(plain, values, sublayers, first)
    _equal_gradients(connection, whole_pass(connection), plain, whole_pass(plain))


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
    """A bfloat16 stream stays bfloat16, close to float32, and its weights are at least float32."""
    connection, x = randomised(make(SITES)), noise((2, 3, DIM), 0)
    exact, rounded = whole_pass(connection)(x), whole_pass(connection)(x.bfloat16())
    require(rounded.dtype == torch.bfloat16, f"it becomes {rounded.dtype}; round sums with .to(x.dtype)")
    # Of most tokens: rounding may turn a sharp choice of one into another's, which is no fault of the rule.
    off = (rounded.float() - exact).norm(dim=-1) / exact.norm(dim=-1)
    require(bool(off.median() < 0.1), "it is more than 10% off")
    values = connection.start(x.bfloat16())
    for site, sublayer in enumerate([*random_sublayers(connection), None]):
        for weight in _tensors(connection.weigh(values, site)):
            wide = weight.dtype.itemsize >= 4 and weight.ndim > 0
            require(
                wide or not weight.is_floating_point(),
                f"weigh gives site {site} a weight {weight.dtype} {list(weight.shape)}; make it float32, with an axis: "
                "one without does not widen the bfloat16 that it multiplies",
            )
        values = values if sublayer is None else connection.run(values, [sublayer], site)


def _tensors(weights: Any) -> list[Tensor]:
    if isinstance(weights, tuple | list):
        return [tensor for each in weights for tensor in _tensors(each)]
    return [weights] if isinstance(weights, Tensor) else []


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
    unchanged,
    pure,
    fused,
    per_site,
    bfloat16,
    saved,
)


def _equal_gradients(one: Connection, forward: Callable, other: Connection, reference: Callable) -> None:
    expected = _outputs(other, reference)  # first, so that a rule that fails by itself says so in its own words
    actual = _outputs(one, forward)
    require(close(actual[0], expected[0]), "the outputs differ")
    largest = max(tensor.norm() for tensor in expected)
    names = ["the embedding", *(name for name, _ in one.named_parameters())]
    for name, a, b in zip(names, actual[1:], expected[1:], strict=True):
        error = (a - b).norm()
        require(bool(error <= 1e-4 * b.norm() + 1e-6 * largest), f"the gradient of {name} differs")


def _outputs(connection: Connection, forward: Callable) -> list[Tensor]:
    """The readout, and the gradients of the embedding and of each parameter."""
    x = noise((2, 3, DIM), 0).requires_grad_()
    connection.zero_grad(set_to_none=True)
    h = forward(x)
    (h * torch.linspace(-1, 1, h.numel()).view_as(h)).sum().backward()
    assert x.grad is not None
    return [h.detach(), x.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in connection.parameters())]


def randomised(connection: Connection) -> Connection:
    """Draw every parameter at random, so that no term hides behind its start at zero."""
    with torch.no_grad():
        for seed, parameter in enumerate(connection.parameters()):
            parameter.copy_(0.5 * noise(parameter.shape, seed))
    return connection


def random_sublayers(connection: Connection) -> list[Sublayer]:
    """Make non-linear sublayers of order one, in the dtype of what they read."""
    matrices = [noise((connection.dim,) * 2, site) / connection.dim**0.5 for site in range(connection.sublayers)]
    return [lambda *h, m=m: torch.tanh(sum(h) @ m.to(h[0].dtype)) for m in matrices]


def whole_pass(connection: Connection) -> Callable[[Tensor], Tensor]:
    sublayers = random_sublayers(connection)
    return lambda x: connection.readout(connection.run(connection.start(x), sublayers))


def close(one: Tensor, other: Tensor) -> bool:
    other = other.to(one.dtype)
    scale = other.abs().max().item() if other.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * max(1.0, scale))


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise UsageError(problem)


def noise(shape: tuple[int, ...] | torch.Size, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu")

"""What a run asks of a rule from a user's own file before the first step: that it is linear where it must be, keeps
tokens apart, and leaves what it is given as it is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnres.connections import make_connection
from attnres.connections.base import Connection, Sublayer, Values
from attnres.connections.files import told
from attnres.connections.reads import mixture
from attnres.errors import UsageError

DIM, SITES = 48, 7
FAR = 64
"""How many times one value is added to another: streams grow over depth, and what is clamped there is not linear."""


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
        x, x_other = noise((2, connection.dim), 1), noise((2, connection.dim), 2)
        values, others = connection.start(x), connection.start(x_other)
        _same("start", -1, connection.start(x + FAR * x_other), _combined(values, others))
        for site, sublayer in enumerate([*sublayers, None]):
            weights = connection.weigh(values, site)
            other = tuple(noise(value.shape, 3) for value in values)
            both = _combined(values, other)
            h, h_other = (_reads(connection.gather(v, weights, site)) for v in (values, other))
            _same("gather", site, _reads(connection.gather(both, weights, site)), _combined(h, h_other))
            if sublayer is None:
                return
            y, y_other = sublayer(*h), noise(x.shape, 4)
            weights = connection.weigh_output(values, weights, site, y)

            def scatter(v: Values, h: tuple[Tensor, ...], y: Tensor, weights=weights, site=site) -> Values:
                return connection.scatter(v, weights, site, mixture(h), y)

            after = scatter(values, h, y)
            expected = _combined(after, scatter(other, h_other, y_other))
            _same("scatter", site, scatter(both, _combined(h, h_other), y + FAR * y_other), expected)
            values = after


def check_apart(connection: Connection) -> None:
    """Raise UsageError if what one token reads depends on another token, on another sequence of the batch, or on its
    place among them, in training or behind `eval()`.

    A rule that reads a later token predicts it; one that reads an earlier one, or counts them, generates something else
    token by token.
    """
    for training in (False, True):
        whole = whole_pass(connection.train(training))
        x, others = (noise((4, 5, connection.dim), seed) for seed in (0, 1))
        text, place = 1, 3  # in no middle, where a rule that turns the text or the batch round finds the token itself
        others[text, place] = x[text, place]

        def read(tokens: Tensor, seed: int = 0, whole=whole) -> Tensor:
            torch.manual_seed(seed)  # a rule may draw at random
            return whole(tokens)

        with torch.no_grad(), torch.random.fork_rng(devices=[]):
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


def check_unchanged(connection: Connection) -> None:
    """Raise UsageError if a step writes into what it was given, in training or behind `eval()`: who holds the values,
    a sublayer's backward pass among them, would see others, with `.data` without a word.
    """
    for training in (False, True):
        connection.train(training)
        with torch.no_grad():
            values = connection.start(noise((2, connection.dim), 0))
            for site, sublayer in enumerate(random_sublayers(connection)):
                given = [(value, value.clone()) for value in values]
                values = connection.run(values, [_watched(sublayer, given)], site)
                unchanged = all(torch.equal(tensor.nan_to_num(), before.nan_to_num()) for tensor, before in given)
                require(unchanged, f"site {site} changes in place what it was given; make a new tensor")


def _watched(sublayer: Sublayer, given: list[tuple[Tensor, Tensor]]) -> Sublayer:
    """The sublayer, which keeps what it reads and returns, and a copy of each."""

    def watched(*h: Tensor) -> Tensor:
        y = sublayer(*h)
        given.extend((tensor, tensor.clone()) for tensor in (*h, y))
        return y

    return watched


def check_rule(connection: str, dim: int, sublayers: int) -> None:
    """Raise UsageError unless the connection is linear where it must be, keeps tokens apart and leaves what it is given
    as it is: on a small one with random parameters. One of so many sites must get to its readout, too.

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
        deep = make_connection(connection, small, sublayers)
        try:
            rule = randomised(make_connection(connection, small, SITES))
            check_unchanged(rule)  # first: what it writes into looks as if it were not linear
            check_linear(rule)
            check_apart(rule)
            with torch.no_grad():
                whole_pass(deep)(noise((2, small), 0))
        except UsageError as error:
            raise UsageError(f"connection {connection}: {error}") from None
        except (Exception, SystemExit) as error:
            raise UsageError(f"connection {connection} fails with {told(error)}; attnres check says where") from error


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


def _reads(h: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return h if isinstance(h, tuple) else (h,)


def _combined(one: Values, other: Values) -> Values:
    return tuple(a + FAR * b for a, b in zip(one, other, strict=True))


def _same(step: str, site: int, found: Values, expected: Values) -> None:
    where = f" at site {site}" if site >= 0 else ""
    for a, b in zip(found, expected, strict=True):
        require(bool(a.isfinite().all()), f"{step} gives numbers that are not finite{where}")
        require(close(a, b), f"{step} is not linear{where}; what is not linear in the values belongs in weigh")

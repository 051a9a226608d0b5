"""What tests of connections share: every variant, with random parameters, between small sublayers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from attnres import Connection, connection_names, make_connection
from attnres.connections import output_of
from attnres.connections.block import AttnResOptions

DIM, SITES = 12, 7


def _other_values() -> list[dict]:
    """Each option of AttnRes at every other value that it can have; a number at one."""
    hints, found = get_type_hints(AttnResOptions), []
    for option, default in dataclasses.asdict(AttnResOptions()).items():
        if isinstance(default, bool):
            values = [not default]
        elif get_origin(hints[option]) is Literal:
            values = [value for value in get_args(hints[option]) if value != default]
        else:
            values = [1e-2 if isinstance(default, float) else 3]
        found += [{option: value} for value in values]
    return found


ATTNRES_OPTIONS = [
    *_other_values(),
    {"mixing": "static", "heads": 3, "reads": "qkv"},
    {"window": 2},
    {"total": True, "weighting": "sigmoid"},
    {"query": "input", "heads": 4, "weighting": "sigmoid", "window": 3},
]

VARIANTS: list[tuple[str, dict]] = [
    *[(name, {}) for name in connection_names()],
    *[("full", options) for options in ATTNRES_OPTIONS],
    *[("block", {"block_size": 3, **options}) for options in ATTNRES_OPTIONS],
    ("block", {"block_size": 1}),
    ("block", {"block_size": 2}),
    ("block", {"block_size": 100}),
    ("rms-block", {"block_size": 1}),
    ("rms-block", {"block_size": 2}),
    ("rms-block", {"block_size": 3, "pending": "normalised"}),
    ("rms-block", {"block_size": 3, "reads": "qkv-gate-up"}),
    ("rms-block", {"block_size": 3, "gate": True, "total": True}),
    ("rms-residual", {"gate": True}),
    ("interlayer", {"block_size": 2}),
    ("interlayer", {"block_size": 3, "gate": True, "total": True}),
    ("delta", {"gate": True}),
    ("delta", {"block_size": 3, "gate": True, "reads": "qkv-gate-up"}),
    ("haares", {"block_size": 2}),
    ("haares", {"block_size": 5, "detach": False, "reads": "qkv"}),
    ("kromhc", {"streams": 2}),
    ("kromhc", {"streams": 8}),
    ("delta", {"block_size": 3}),
    ("delta", {"block_size": 2, "reads": "qkv"}),
    ("delta", {"reads": "qkv-gate-up"}),
    ("hc", {"dynamic": False}),
    ("hc", {"streams": 1}),
    ("mhc", {"streams": 2}),
]


def variant_id(variant: tuple[str, dict]) -> str:
    name, options = variant
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


def randomised(name: str, dim: int = DIM, sites: int = SITES, **options) -> Connection:
    """The connection with every parameter drawn at random, so that no term hides behind its zero start."""
    connection = make_connection(name, dim=dim, sites=sites, **options)
    randomise(connection)
    return connection


def randomise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))


def make_sublayers(dim: int = DIM, sites: int = SITES) -> list[Callable[[Tensor], Tensor]]:
    """Non-linear, order-one functions of h, or of all that a site reads, in the dtype of h."""
    generator = torch.Generator().manual_seed(11)
    matrices = [torch.randn(dim, dim, generator=generator) / dim**0.5 for _ in range(sites)]

    def sublayer(h, *more, m):
        for k, other in enumerate(more, 2):
            h = h - other / k
        return torch.tanh(h @ m.to(h.dtype))

    return [partial(sublayer, m=m) for m in matrices]


def trace(connection: Connection, x: Tensor, sublayers) -> tuple[list[Tensor], list]:
    """Run site by site; the sources v_0 .. v_L and the inputs h_0 .. h_L, a tuple where a site reads several."""
    values, sources, inputs = connection.start(x), [x], []
    for site, sublayer in enumerate(sublayers):
        weights, h = connection.mix(values, site)
        y = output_of(sublayer, h, values)
        values = connection.absorb(values, weights, site, h, y)
        sources.append(y)
        inputs.append(h)
    return sources, [*inputs, connection.readout(values)]

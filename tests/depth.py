"""What tests of connections share: every variant, with random parameters, between small sublayers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from attnres import Connection, connection_names, make_connection
from attnres.connections import output_of, parse_connection

DIM, SITES = 12, 7


def in_blocks(connection: str) -> str:
    """With blocks of four sublayers: of a test's few sublayers eight blocks would hold one or two each."""
    return f"{connection}:block_size=4" if connection in ("block", "rms-block") else connection


VARIANTS: list[tuple[str, dict]] = [
    *map(parse_connection, map(in_blocks, connection_names())),
    # What depth attention's operator computes, for blocks of one sublayer and of several ..
    ("full", {"eps": 1e-2, "total": True}),
    ("full", {"window": 3, "reads": "qkv-gate-up"}),
    ("block", {"block_size": 2, "eps": 1e-2, "total": True}),
    ("block", {"block_size": 3, "window": 2}),
    ("block", {"block_size": 3, "reads": "qkv-gate-up"}),
    ("block", {"block_size": 3, "round_phase_1": True}),
    ("block", {"block_size": 3, "reads": "qk-v", "total": True}),
    ("block", {"block_size": 100}),
    ("block", {"block_size": 3, "heads": 4, "total": True}),
    ("full", {"heads": 2, "reads": "qkv"}),
    # .. and what plain PyTorch does.
    ("full", {"key_norm": False, "value_norm": True, "scaled_scores": True}),
    ("full", {"query": "input", "heads": 4, "weighting": "sigmoid", "window": 3}),
    ("block", {"block_size": 3, "mixing": "static", "heads": 3, "reads": "qkv"}),
    ("block", {"block_size": 3, "weighting": "sigmoid", "total": True}),
    ("block", {"block_size": 3, "key_slice": 5}),
    ("full", {"key_slice": 6, "null": True, "heads": 3, "query": "input", "total": True}),
    ("rms-block", {"block_size": 2}),
    ("rms-block", {"block_size": 3, "pending": "normalised"}),
    ("rms-block", {"block_size": 3, "reads": "qkv-gate-up"}),
    ("rms-block", {"block_size": 3, "gate": True, "total": True}),
    ("rms-block", {"block_size": 3, "heads": 2}),
    ("rms-residual", {"gate": True}),
    ("interlayer", {"block_size": 2}),
    ("interlayer", {"block_size": 3, "gate": True, "total": True}),
    ("delta", {"gate": True}),
    ("delta", {"block_size": 3}),
    ("delta", {"gate": True, "reads": "qk-v"}),
    ("delta", {"block_size": 3, "gate": True, "reads": "qkv-gate-up", "heads": 3}),
    ("haares", {"block_size": 2}),
    ("haares", {"block_size": 5, "detach": False, "reads": "qkv"}),
    ("haares", {"block_size": 2, "reads": "qk-v"}),
    ("kromhc", {"streams": 8}),
    ("hc", {"dynamic": False}),
    ("hc", {"streams": 1}),
    ("wide", {"streams": 3, "retention": True}),
    ("altup", {"streams": 3, "active": 1, "laurel": True}),
    ("gated-residual", {"streams": 2, "rank": 5}),
    ("muse-gate", {"norm": False, "temperature": 1.0}),
    ("depth-scaled", {"norm": False}),
]
"""Every connection, and each option that changes the maths once."""


def variant_id(variant: tuple[str, dict]) -> str:
    name, options = variant
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


def randomised(name: str, dim: int = DIM, sublayers: int = SITES, **options) -> Connection:
    """The connection with every parameter drawn at random, so that no term hides behind its zero start."""
    connection = make_connection(name if options else in_blocks(name), dim=dim, sublayers=sublayers, **options)
    randomise(connection)
    return connection


def randomise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))


def make_sublayers(dim: int = DIM, sublayers: int = SITES) -> list[Callable[[Tensor], Tensor]]:
    """Non-linear, order-one functions of h, or of all that a site reads, in the dtype of h."""
    generator = torch.Generator().manual_seed(11)
    matrices = [torch.randn(dim, dim, generator=generator) / dim**0.5 for _ in range(sublayers)]

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

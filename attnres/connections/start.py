"""Whether a connection starts as the plain residual."""

from __future__ import annotations

from typing import Any

import torch

from attnres.connections import connection_class, option_defaults
from attnres.connections.base import Connection
from attnres.connections.grammar import parse_connection
from attnres.connections.matrix import mixing_matrix

EXACT_START = ("total", "gate")
"""Options with which a connection starts as the plain residual."""


def with_exact_start(connection: str, options: dict[str, Any]) -> dict[str, Any]:
    """Add to the options those of EXACT_START that the connection has and nobody gave."""
    _, written = parse_connection(connection)
    defaults = option_defaults(connection_class(connection))
    return options | {name: True for name in EXACT_START if name in defaults and name not in {**written, **options}}


@torch.no_grad()
def difference_at_start(connection: Connection) -> str:
    """Say where the connection, with the parameters it has, does not read the plain sum; nothing if it does so."""
    device = next((parameter.device for parameter in connection.parameters()), torch.device("cpu"))
    with device:  # whatever the default is
        generator = torch.Generator("cpu").manual_seed(0)
        x, *outputs = torch.randn(connection.sublayers + 1, connection.dim, generator=generator, device="cpu").to(
            device
        )
        sublayers = [lambda *_, y=y: y for y in outputs]
        weights = mixing_matrix(connection, x, sublayers, per_channel=True, per_read=True)  # [read, site, source, dim]
    wrong = ((weights - 1).abs().amax((0, -1)) <= 1e-4).logical_not().tril()  # what is no number is wrong, too
    if not wrong.any():
        return ""
    site, source = wrong.nonzero()[0].tolist()
    weight = weights[0, site, source].mean().item()
    return f"site {site} reads source {source} with weight {weight:.3g}, not 1"

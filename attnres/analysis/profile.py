"""What one model's depth looks like, as plain arrays: the whole interface between analysis and report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from attnres.connections import Connection
from attnres.model import sublayer_name

SINK = 1.05
"""Times an equal share from which on a source counts as a sink."""
SEEN = 0.25
"""Share of the sites that must see a sink: the few sites behind the last sources read them in any case."""


def names_of(connection: Connection) -> tuple[str, ...]:
    """Name the sublayers of a connection."""
    return connection.names or sublayer_names(connection.sublayers)


def sublayer_names(sublayers: int) -> tuple[str, ...]:
    """Name the sublayers of a model with so many sites."""
    return tuple(map(sublayer_name, range(sublayers)))


@dataclass(frozen=True, eq=False)
class DepthProfile:
    """L sublayers, so L + 1 sites (the last is the readout) and L + 1 sources (the first is the embedding).

    Means are over all tokens. share = |M[l, i]| / sum_i |M[l, i]| per token: how a site divides its attention, also
    where rows of M do not add up to one.
    """

    names: tuple[str, ...]
    """Names of the L sublayers."""
    positions: tuple[int, ...]
    """K chosen token positions of the first sequence."""
    mean_matrix: np.ndarray
    """[site, source]: the depth mixing matrix M, mean over tokens."""
    mean_share: np.ndarray
    """[site, source]: the share, mean over tokens."""
    token_matrices: np.ndarray
    """[K, site, source]: M of each chosen token."""
    output_rms: np.ndarray
    """[source]: RMS of v_i over channels, mean over tokens."""
    input_rms: np.ndarray
    """[site]: RMS of h_l over channels, mean over tokens."""
    gradient_rms: np.ndarray
    """[source]: RMS over channels of d(sum of token losses)/dv_i, mean over tokens."""
    entropy: np.ndarray
    """[site]: entropy of the share in nats, mean over tokens. At most `entropy_limit`."""

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What `to_json` made; null is NaN, and what else is there is passed over."""
        arrays = {field.name: np.array(data[field.name], float) for field in fields(cls)[2:]}
        return cls(tuple(data["names"]), tuple(data["positions"]), **arrays)

    @property
    def site_names(self) -> tuple[str, ...]:
        return (*self.names, "readout")

    @property
    def source_names(self) -> tuple[str, ...]:
        return ("embedding", *self.names)

    @property
    def entropy_limit(self) -> np.ndarray:
        """[site]: log(l + 1), the entropy of equal shares of all sources that site l can see."""
        return np.log(np.arange(1, len(self.site_names) + 1))

    @property
    def embedding_share(self) -> np.ndarray:
        """[site]: the share of the embedding."""
        return self.mean_share[:, 0]

    @property
    def source_share(self) -> np.ndarray:
        """[source]: its share, averaged over the sites that can see it (l >= i)."""
        return np.array([self.mean_share[source:, source].mean() for source in range(len(self.source_names))])

    @property
    def equal_share(self) -> np.ndarray:
        """[source]: what `source_share` would be if every site shared equally among the sources that it can see."""
        shares = 1 / np.arange(1, len(self.source_names) + 1)
        return np.array([shares[source:].mean() for source in range(len(shares))])

    def sinks(self, count: int = 3) -> list[tuple[str, float, float]]:
        """The sources that many sites give more than an equal share: (name, share, times an equal share), most first.

        The share alone would say little: the first sources' is large under any connection, because the first sites see
        no others. Empty for a connection whose sites share equally.
        """
        share, excess = self.source_share, self.source_share / self.equal_share
        seen = int((1 - SEEN) * len(share)) + 1
        order = np.argsort(-excess[:seen], kind="stable")[:count]
        return [(self.source_names[i], float(share[i]), float(excess[i])) for i in order if excess[i] > SINK]

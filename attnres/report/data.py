"""What a report is made from: plain numbers and texts, of any trainer and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnres.analysis.comparison import Comparison
from attnres.analysis.profile import DepthProfile


@dataclass(frozen=True, eq=False)
class LossCurve:
    """The losses of one run. Losses may be NaN."""

    seed: int
    steps: Sequence[int]
    losses: Sequence[float]


@dataclass(frozen=True, eq=False)
class ArmReport:
    """One connection: how it trained and what its depth does."""

    name: str
    description: str = ""
    curves: Sequence[LossCurve] = ()
    profile: DepthProfile | None = None


@dataclass(frozen=True)
class TokenText:
    """A chosen token and the text around it."""

    before: str
    token: str
    after: str


@dataclass(frozen=True, eq=False)
class ReportData:
    """The whole report. The first arm is the baseline that the others are compared with.

    results: what the arms' runs say, from `compare_arms`.
    tokens: the texts of the tokens at the profiles' positions, which are the same in every profile, so that one choice
    shows the same token under every connection.
    """

    title: str
    subtitle: str
    arms: Sequence[ArmReport]
    results: Sequence[Comparison] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    tokens: Sequence[TokenText] = ()
    unit: str = "nats per token"
    curve_label: str = "training loss"

    @property
    def profiled(self) -> list[tuple[ArmReport, DepthProfile]]:
        """The arms that have a profile, with it."""
        return [(arm, arm.profile) for arm in self.arms if arm.profile is not None]

    @property
    def trained(self) -> list[ArmReport]:
        """The arms that have at least one recorded step."""
        return [arm for arm in self.arms if any(len(curve.steps) for curve in arm.curves)]

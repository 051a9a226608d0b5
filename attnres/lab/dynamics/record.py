"""What is recorded of depth over training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from attnres.lab.outcome import Outcome
from attnres.lab.record import Record, Stored, refuse_repeated

Numbers = tuple[float, ...]

DIGITS = 7
"""Those that are kept of a number: float32's, because seeds may agree to within what fewer would round off."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A model at one step of its training."""

    step: int
    output_rms: Numbers
    """The RMS of the embedding and of every sublayer's output: [source]."""
    input_rms: Numbers
    """The RMS of what every site reads, the readout last: [site]."""
    gradient_rms: Numbers
    """The RMS of the gradient at every source: [source]."""
    entropy: Numbers
    """The entropy of the depth weights of every site, in nats: [site]."""
    embedding_share: float
    """Mean over sites."""
    update: Numbers = ()
    """How far every sublayer's matrices went since the moment before, per step; the first moment has none."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of the depth mixing matrix M."""

    effective: float
    semiseparable: int
    """The largest over tokens and channels."""
    semiseparable_mean: float


@dataclass(frozen=True, kw_only=True)
class Profiles(Stored):
    """What is measured of one run, kept in its folder, where it outlives the checkpoints."""

    kind: ClassVar = "dynamics of a run"
    written_by: ClassVar = "dynamics"

    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    """The shape of the tokens that were read."""
    moments: tuple[Moment, ...]
    source_share: Numbers
    """[source], mean over sites, at the last step."""
    embedding_share: Numbers
    """[site], at the last step."""
    mean_matrix: tuple[Numbers, ...]
    """M after training, mean over tokens; the lower triangle, a row for each site."""
    ranks: Ranks


@dataclass(frozen=True, kw_only=True)
class ProfiledRun(Outcome):
    """One seed of an arm; what is measured is there if the run is done."""

    seed: int
    moments: tuple[Moment, ...] = ()
    source_share: Numbers = ()
    embedding_share: Numbers = ()
    ranks: Ranks | None = None


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One connection."""

    arm: str
    block_size: int | None
    rank_bound: int
    """The largest semiseparable rank that its values leave room for."""
    runs: tuple[ProfiledRun, ...]
    mean_matrix: tuple[Numbers, ...] | None
    """M of the first seed, mean over tokens; None where no run is done."""


@dataclass(frozen=True, kw_only=True)
class DynamicsRecord(Record):
    kind: ClassVar = "dynamics"
    written_by: ClassVar = "dynamics"
    never_empty: ClassVar = ("arms",)
    told_apart: ClassVar = {"arms": ("arm",)}

    arms: tuple[Arm, ...]
    """The first is the baseline."""

    @property
    def measured(self) -> set[tuple[str, int]]:
        return {(arm.arm, run.seed) for arm in self.arms for run in arm.runs}

    def __post_init__(self) -> None:
        super().__post_init__()
        for arm in self.arms:
            refuse_repeated(arm.runs, ("seed",), "runs")
            for run in arm.runs:
                refuse_repeated(run.moments, ("step",), "moments")
                if run.done and not (run.moments and run.source_share and run.embedding_share and run.ranks):
                    raise ValueError(f"with nothing measured of {arm.arm}, seed {run.seed}")
        self._check_lengths()

    def _check_lengths(self) -> None:
        """Raise ValueError unless every run has as many numbers as the model has sources, the embedding included."""
        done = [(arm.arm, run) for arm in self.arms for run in arm.runs if run.done]
        sources = len(done[0][1].source_share) if done else 0
        steps = [moment.step for moment in done[0][1].moments] if done else []
        for arm, run in done:
            found = {len(run.source_share), len(run.embedding_share)}
            for moment in run.moments:
                found |= {len(moment.output_rms), len(moment.input_rms), len(moment.gradient_rms), len(moment.entropy)}
                found |= {len(moment.update) + 1} if moment.update else set()
            if found != {sources} or [moment.step for moment in run.moments] != steps:
                raise ValueError(f"with numbers of {arm}, seed {run.seed}, missing or too many")
        for each in self.arms:
            rows = [len(row) for row in each.mean_matrix or ()]
            if rows and rows != list(range(1, sources + 1)):
                raise ValueError(f"with numbers of {each.arm} under 'mean_matrix' missing or too many")


Runs = Mapping[int, ProfiledRun]
"""By seed."""

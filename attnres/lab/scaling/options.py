"""What `attnres scaling` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from attnres.lab.options import Arms, Config
from attnres.train import RunConfig
from attnres.train.workers import default_workers

ARMS = ("residual", "block", "full")
SIZES = ("16x32", "16x48", "20x64", "24x80", "28x96")
DEFAULTS = RunConfig(batch_size=4, validation_tokens=32_768)


@dataclass(frozen=True)
class Options:
    """What `attnres scaling` asks for."""

    arms: Arms = ARMS
    """Connections as NAME or NAME:OPTION=VALUE,OPTION=VALUE, before all options. The first is the baseline."""
    sizes: tuple[str, ...] = SIZES
    """Models as LAYERSxDIM, at least three; LAYERSxDIM@N has N tokens per parameter. Steps, heads, layers and dim below
    are replaced by theirs; a run is evaluated and saved after every tenth of its steps."""
    heads: int | None = None
    """Attention heads at every size. None: heads of 16 channels, of which a size's dim must then be a multiple."""
    tokens_per_parameter: float = 0.4
    """Tokens of a run over the parameters of its sublayers that a token meets; of the lab's own sublayers these are
    taken as 12 layers dim^2, a few percent less than they are."""
    seeds: int = 3
    """Paired seeds: seed, seed + 1, .."""
    grid: tuple[float, ...] = (1.0,)
    """Multiples of the learning rates (optimizer.lr and optimizer.adamw-lr together) that every arm tries at the two
    smallest sizes, and one beyond where the best lies at an edge, at most three times. Other sizes have the rate on the
    line through both."""
    checks: int = 1
    """With a grid: how many sizes, from the third on, are tried at half and twice the rate of their line, on the first
    seed; 0 for none."""
    workers: int = default_workers()
    """Runs at a time, each with one thread."""
    time_steps: bool = False
    """When all is trained, time a step of every arm at every size by turns, on one thread; the advantage in seconds is
    then of these times. Otherwise it is of the runs' own, which other work on the machine blurs. The same command with
    it goes on with a record and only times."""
    config: Config = DEFAULTS

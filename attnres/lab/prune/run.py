"""Switch every sublayer of trained runs off in turn, and record the losses that this adds."""

from __future__ import annotations

from pathlib import Path

from attnres.data import Corpus
from attnres.lab.experiment import Ended, Progress
from attnres.lab.prune.measure import pruned
from attnres.lab.prune.record import Pruned, PrunedRun, PruneRecord
from attnres.lab.trained import Plan, Trained


def run(plan: Plan, file: Path, progress: Progress) -> Ended[PruneRecord]:
    measured = _measured(plan, plan.open_corpus(progress), progress)
    record = PruneRecord(
        **plan.header(sum(result.seconds for result in measured.values())),
        tokens=next(iter(measured.values())).tokens,
        baseline=plan.baseline,
        runs=tuple(_recorded(one, measured.get(one.folder.path)) for one in plan.runs),
    )
    return Ended(record, notes=plan.left_out)


def _measured(plan: Plan, corpus: Corpus, progress: Progress) -> dict[Path, Pruned]:
    """Measure every run that is done; the results by run folder."""
    measured = {}
    with progress.bar(sum(one.config.model.sites for one in plan.done)) as advance:
        for one in plan.done:
            name = f"{one.arm}, seed {one.config.seed}"
            advance(0, name)
            path, tokens = one.folder.path, plan.options.tokens
            measured[path] = pruned(one, corpus, tokens, lambda part, name=name: advance(part, name))
            progress.log(f"{name}: {len(measured)} of {len(plan.done)} runs")
    return measured


def _recorded(run: Trained, measured: Pruned | None) -> PrunedRun:
    if measured is None:
        return PrunedRun(arm=run.arm, seed=run.config.seed, status=run.status)
    return PrunedRun(arm=run.arm, seed=run.config.seed, status=run.status, loss=measured.loss, added=measured.added)

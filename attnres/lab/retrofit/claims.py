"""What a record of retrofits says: each arm against its plain twin, and arms against each other."""

from __future__ import annotations

from attnres.lab.claims import Statement, judged, paired
from attnres.lab.outcome import done_runs
from attnres.lab.retrofit.plan import percent
from attnres.lab.retrofit.record import RetrofitRecord

CLAIMS = {
    "the connection wants ten times the rate of the weights": [
        (arm, f"{arm}@1") for arm in ("block", "full", "rms-block", "delta:block_size=4")
    ],
    "Full beats Block": [("full", "block"), ("full@1", "block@1")],
    "normalising outputs helps": [("rms-block", "block"), ("rms-block@1", "block@1")],
    "Delta Block beats Block": [("delta:block_size=4", "block"), ("delta:block_size=4@1", "block@1")],
    "Block beats feeding the embedding back in": [("block", "x0"), ("block@1", "x0")],
}
"""What is said of an arm and another one: that it is better. @1 is at the rate of the weights."""


def losses(record: RetrofitRecord, fraction: float) -> dict[str, dict[int, float]]:
    """arm -> seed -> the loss after so much further training, of the runs that are done."""
    found: dict[str, dict[int, float]] = {arm.name: {} for arm in record.arms}
    for run in done_runs(record.runs):
        if run.fraction == fraction:
            found[run.arm][run.seed] = run.loss
    return found


def differences(record: RetrofitRecord, fraction: float) -> dict[str, list[float]]:
    """Arm -> loss minus that of the plain twin, seed by seed; negative is better."""
    return paired(losses(record, fraction), record.arms[0].name, lambda loss: loss)


def lost_at_start(record: RetrofitRecord, arm: str) -> float | None:
    """The largest difference of a loss before the first step to that of the plain model; None without a run."""
    plain = {run.seed: run.loss for run in record.plain}
    lost = [run.curve[0][1] - plain[run.seed] for run in record.runs if run.arm == arm and run.curve]
    return max(lost, key=abs, default=None)


def statements(record: RetrofitRecord) -> list[Statement]:
    """Every claim, on every arm or after every length of further training."""
    found = []
    for fraction in record.fractions:
        found += _below_the_twin(record, fraction)
    for claim, pairs in CLAIMS.items():
        values = {}
        for better, other in pairs:
            for fraction in record.fractions:
                arms = losses(record, fraction)
                both = {name: arms[name] for name in (other, better) if name in arms}
                of_pair = paired(both, other, lambda loss: loss)
                values |= {f"{better} - {other}, {percent(fraction)}": of for of in of_pair.values()}
        found += judged(claim, -1, values)
    return found


def _below_the_twin(record: RetrofitRecord, fraction: float) -> list[Statement]:
    return judged(f"ends below the plain twin after {percent(fraction)} more", -1, differences(record, fraction))


def finding(record: RetrofitRecord) -> str:
    """For which arms it is shown, after each length of further training, that they end below the plain twin."""
    parts = []
    for fraction in record.fractions:
        if found := _below_the_twin(record, fraction):
            shown = [f"{one.arm} ({one.value:+z.4f} ± {one.error:.4f})" for one in found if one.reading == "shown"]
            parts.append(f"after {percent(fraction)} for {', '.join(shown) or f'none of {len(found)} arms'}")
    if not parts:
        return "No arm has a run beside its plain twin's."
    return f"That an arm ends below a plain twin that trains on, too, is shown {'; '.join(parts)} (nats per byte)."

"""The paper's claims on a made-up ablation, against scipy."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from attnres.analysis.comparison import holm
from attnres.lab.experiments.ablate import claims, comparisons, finding, rank_correlation, tables
from attnres.lab.runs import Record
from tests.lab.sample import ablation

LOSSES = {
    "residual": [2.00, 2.10, 2.20, 2.30],
    "full": [1.90, 2.01, 2.09, 2.21],  # better than residual by about 0.1 everywhere
    "block": [1.95, 2.00, 2.18, 2.26],  # worse than full on the whole, not decided
    "mhc": [2.50, 2.61, 2.69, 2.80],  # worse than residual, and the paper says better
}


def runs(losses: dict[str, list[float]]) -> list[dict[str, Any]]:
    return [
        {"arm": arm, "at": "std 1", "seed": seed, "loss": loss, "step_seconds": 1.0, "peak_memory_bytes": 1}
        for arm, values in losses.items()
        for seed, loss in enumerate(values)
    ]


def record(losses: dict[str, list[float]]) -> Record:
    return ablation(runs(losses))


def test_claims_are_read_from_paired_corrected_tests():
    found = claims(record(LOSSES))
    pairs = [tuple(verdict.arm.split(" - ")) for verdict in found]
    assert pairs == [
        ("full", "residual"),
        ("block", "residual"),
        ("full", "block"),
        ("full", "mhc"),
        ("mhc", "residual"),
    ]
    tests: list[Any] = [stats.ttest_rel(LOSSES[a], LOSSES[b]) for a, b in pairs]
    expected = holm([float(test.pvalue) for test in tests])
    for verdict, (better, other), p_value in zip(found, pairs, expected, strict=True):
        differences = [a - b for a, b in zip(LOSSES[better], LOSSES[other], strict=True)]
        assert verdict.value == pytest.approx(sum(differences) / 4)
        assert verdict.error == pytest.approx(stats.sem(differences))
        assert verdict.p_value == pytest.approx(p_value)
    readings = [verdict.reading for verdict in found]
    assert readings == ["shown", "not decided", "not decided", "shown", "refuted"]
    said = [row[-1] for row in tables(record(LOSSES))[-1].rows]
    assert said == ["agrees", "not decided", "not decided", "agrees", "disagrees"]


def test_block_with_its_size_named_is_the_papers():
    named = {"block": "block:block_size=4", "block:heads=16": "block:block_size=4,heads=16"}
    found, bare = (
        (claims(shown), rank_correlation(next(comparisons(shown))[1]))
        for shown in (record({names.get(arm, arm): losses for arm, losses in LOSSES.items()}) for names in (named, {}))
    )
    assert found == bare


def test_runs_that_diverged_are_left_out_of_pairs():
    losses = {arm: LOSSES[arm] for arm in ("residual", "full")}
    changed = runs(losses)
    changed[-1] |= {"status": "diverged", "loss": 99.0}
    shown = ablation(changed)
    (verdict,) = claims(shown)
    assert verdict.value == pytest.approx((-0.10 - 0.09 - 0.11) / 3)
    ((_, rows),) = comparisons(shown)
    assert rows[1].validation_loss == pytest.approx(2.0)


def test_only_what_is_decided_is_found():
    """The best of several is always below something: which one it is was not tested."""
    losses = {
        "residual": [2.0, 2.1, 2.2],
        "full": [1.9, 2.0, 2.101],
        "x0": [1.8, 2.2, 2.1],
        "highway": [2.1, 2.2, 2.301],
    }
    said = finding(record(losses))
    assert "with embedding std 1, full (-0.0997, p < 0.001) below residual; highway (+0.1003, p " in said
    assert "above residual; 1 of 3 not decided" in said
    assert "1 of 1 not decided" in finding(record({"residual": [2.0], "full": [1.9]}))


def test_nothing_is_found_where_nothing_ended():
    """The page said that nothing ends below residual when every run had failed on a full disk."""
    failed = [run | {"status": "failed", "loss": None} for run in runs({"residual": [2.0], "full": [1.9]})]
    for ended in (failed, [*runs({"residual": [2.0]}), failed[1]]):
        assert "no seed of residual and another connection ended, nothing is compared" in finding(ablation(ended))

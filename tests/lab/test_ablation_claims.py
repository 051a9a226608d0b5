"""The paper's claims on a made-up ablation, against scipy and Holm's method done by hand."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from attnres.lab.ablation.claims import SUCCESSORS, all_verdicts, comparisons, finding, rank_correlation, verdicts
from attnres.lab.ablation.record import AblationRecord
from attnres.lab.ablation.tables import ablation_tables
from attnres.lab.paper import CLAIMS
from tests.lab.sample import parsed

LOSSES = {
    "residual": [2.00, 2.10, 2.20, 2.30],
    "full": [1.90, 2.01, 2.09, 2.21],  # better than residual by about 0.1 everywhere
    "block": [1.95, 2.00, 2.18, 2.26],  # worse than full on the whole, not decided
    "mhc": [2.50, 2.61, 2.69, 2.80],  # worse than residual, and the paper says better
}


def cell(arm: str, std: float, runs: list[dict]) -> dict:
    return {"arm": arm, "embedding_std": std, "factor": 1.0, "tuning": [], "runs": runs}


def entries(losses: dict[str, list[float]]) -> dict:
    done = {"factor": 1.0, "status": "done", "step_seconds": 1.0, "peak_memory_bytes": 1}
    cells = [
        cell(arm, 1.0, [{**done, "seed": seed, "loss": loss} for seed, loss in enumerate(values)])
        for arm, values in losses.items()
    ]
    sweep = {"config": {}, "grid": [1.0], "tuning_seeds": 1}
    return {"sweep": sweep, "embedding_stds": [1.0], "left_out": [], "cells": cells}


def record(losses: dict[str, list[float]]) -> AblationRecord:
    return parsed(AblationRecord, entries(losses))


def holm(p_values: list[float]) -> list[float]:
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def test_claims_are_read_from_paired_corrected_tests():
    found = verdicts(record(LOSSES), CLAIMS)
    pairs = [(verdict.better, verdict.other) for verdict in found]
    assert pairs == [
        ("full", "residual"),
        ("block", "residual"),
        ("full", "block"),
        ("full", "mhc"),
        ("mhc", "residual"),
    ]
    tests: list[Any] = [stats.ttest_rel(LOSSES[a], LOSSES[b]) for a, b in pairs]
    expected = holm([float(test.pvalue) for test in tests])
    for verdict, p_value in zip(found, expected, strict=True):
        differences = [a - b for a, b in zip(LOSSES[verdict.better], LOSSES[verdict.other], strict=True)]
        assert verdict.difference == pytest.approx(sum(differences) / 4)
        assert verdict.error == pytest.approx(stats.sem(differences))
        assert verdict.p_value == pytest.approx(p_value)
    readings = [verdict.reading for verdict in found]
    assert readings == ["agrees", "not decided", "not decided", "agrees", "disagrees"]
    assert [row[-1] for row in ablation_tables(record(LOSSES))[-1].rows] == readings


def test_runs_that_diverged_are_left_out_of_pairs():
    losses = {arm: LOSSES[arm] for arm in ("residual", "full")}
    changed = entries(losses)
    changed["cells"][1]["runs"][3] = {"factor": 1.0, "seed": 3, "status": "diverged", "loss": 99.0}
    shown = parsed(AblationRecord, changed)
    (verdict,) = verdicts(shown, CLAIMS)
    assert verdict.difference == pytest.approx((-0.10 - 0.09 - 0.11) / 3)
    ((_, rows),) = comparisons(shown)
    assert rows[1].validation_loss == pytest.approx(2.0)


def test_what_normalising_and_attention_give_together_is_held_against_their_sum():
    losses = {"residual": LOSSES["residual"], "block": LOSSES["block"]}
    losses["rms-residual"] = [loss - 0.1 for loss in LOSSES["residual"]]
    losses["rms-block"] = [
        loss - 0.1 - extra for loss, extra in zip(LOSSES["block"], (0.05, 0.06, 0.04, 0.05), strict=True)
    ]
    shown = record(losses)
    found = {verdict.claim: verdict for verdict in verdicts(shown, SUCCESSORS)}
    assert len(found) == 5
    together = found["attention helps more there than on raw ones"]
    assert together.compared == "(rms-block - rms-residual) - (block - residual)"
    assert together.difference == pytest.approx(-0.05) and together.reading == "agrees"
    assert found["normalising outputs helps, without attention"].difference == pytest.approx(-0.1)
    assert [row[-1] for row in ablation_tables(shown)[-1].rows] == [verdict.reading for verdict in found.values()]
    assert len(all_verdicts(shown)) == len(found) + 1  # the paper's own: Block beats the plain residual


def test_no_table_of_claims_where_none_is_tested():
    (table,) = ablation_tables(record({"residual": LOSSES["residual"], "rezero": LOSSES["mhc"]}))
    assert table.rows[1][0] == "rezero"


def test_rank_correlation_is_kendalls_over_the_papers_arms():
    assert rank_correlation(record({arm: LOSSES[arm] for arm in ("residual", "full")}), 1.0) is None
    known = rank_correlation(record({**LOSSES, "x0": [3.0] * 4}), 1.0)  # the paper has no x0
    assert known is not None
    ours, papers = [2.15, 2.0525, 2.0975, 2.65], [1.766, 1.737, 1.746, 1.747]
    expected = stats.kendalltau(ours, papers)
    assert known == pytest.approx((expected.statistic, expected.pvalue, 4))  # type: ignore[attr-defined]


def test_the_papers_differences_have_our_sign():
    table, _ = ablation_tables(record({arm: LOSSES[arm] for arm in ("residual", "full")}))
    assert [(row[0], row[-1]) for row in table.rows] == [("residual", ""), ("full", "-0.029")]


def test_only_what_is_decided_is_found():
    """The best of several is always below something: which one it is was not tested."""
    losses = {
        "residual": [2.0, 2.1, 2.2],
        "full": [1.9, 2.0, 2.101],
        "x0": [1.8, 2.2, 2.1],
        "highway": [2.1, 2.2, 2.301],
    }
    said = finding(record(losses))
    assert said.startswith(
        "By embedding std: at 1 full (-0.0997, p < 0.001) ends below residual and highway (+0.1003, "
    )
    assert ") ends above residual, not decided: 1 of 3 arms (nats per byte)." in said
    assert "at 1 no arm is decided against residual" in finding(record({"residual": [2.0], "full": [1.9]}))


def test_nothing_is_found_where_nothing_ended():
    """The page said that nothing ends below residual when every run had failed on a full disk."""
    for losses in ({"residual": [], "full": []}, {"residual": [2.0], "full": []}):
        assert "at 1 nothing could be compared: no seed of residual and another one ended" in finding(record(losses))

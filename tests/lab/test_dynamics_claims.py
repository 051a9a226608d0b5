"""The statistics of `attnres dynamics` on made-up records whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from attnres.lab.experiments.dynamics import claims, pictures
from attnres.lab.judge import Statement
from attnres.lab.runs import Record
from tests.lab.sample import record as record_from

SITES = 24
EQUAL = np.array([np.mean(1 / np.arange(source + 1, SITES + 2)) for source in range(SITES + 1)])
"""[source]: the share that a source has, averaged over the sites that see it, where each divides equally."""


def statement(value, error, p, sign=1, seeds=3) -> Statement:
    return Statement("claim", "arm", value, error, seeds, p, sign)


@pytest.mark.parametrize(
    ("found", "reading"),
    [
        (statement(0.5, 0.05, 0.01), "shown"),
        (statement(-0.5, 0.05, 0.01), "refuted"),
        (statement(-0.5, 0.05, 0.01, sign=-1), "shown"),
        (statement(0.5, 0.3, 0.2), "not decided"),
        (statement(0.001, 0.0001, 0.001), "refuted"),  # certain, and too small to matter
        (statement(0.001, 0.01, 0.9), "not decided"),
        (statement(0.5, None, None, seeds=1), "not decided"),
        (statement(0.0, 0.0, 1.0), "refuted"),
        (statement(0.2, None, 0.01), "shown"),
    ],
)
def test_readings_follow_the_rule(found, reading):
    assert found.reading == reading


def made_up_runs(seeds: int = 4) -> list[dict]:
    """residual: h grows tenfold; block: it goes round within blocks of four. Gradients of block are even."""
    generator = np.random.default_rng(0)
    places = np.arange(SITES + 1)

    def run(arm: str, seed: int) -> dict:
        noise = np.exp(0.02 * generator.standard_normal((4, SITES + 1)))
        shape = 10 ** (places / SITES) if arm == "residual" else np.exp(0.4 * (places % 4 == 2))
        slope = places / SITES if arm == "residual" else 0 * places
        end = {
            "step": 10,
            "input_rms": list(shape * noise[0]),
            "output_rms": list(1.0 * noise[1]),
            "gradient_rms": list(np.exp(-2 * slope) * noise[2]),
            "update": list(0.01 * noise[3, 1:]),
            "entropy": list(np.log(places + 1) * (1 if arm == "residual" else 0.7)),
            "embedding_share": 0.2,
        }
        excess = np.zeros(SITES + 1) if arm == "residual" else 0.01 * generator.standard_normal(SITES + 1)
        excess[0] += 0 if arm == "residual" else 0.5
        measured = {
            "moments": [{**end, "step": 0, "entropy": list(np.log(places + 1))}, end],
            "source_share": list(np.exp(excess) * EQUAL),
            "embedding_share": list(1 / (places + 1)),
        }
        return {"arm": arm, "seed": seed, "loss": 1.5, "measured": measured}

    return [run(arm, seed) for arm in ("residual", "block") for seed in range(seeds)]


def made_up(runs: list[dict]) -> Record:
    return record_from("dynamics", runs)


def lost(run: dict) -> dict:
    return {"arm": run["arm"], "seed": run["seed"], "status": "diverged", "error": "loss is nan"}


def readings(runs: list[dict]) -> dict[tuple[str, str], str]:
    return {(found.claim, found.arm): found.reading for found in claims(made_up(runs))}


def test_a_made_up_record_is_read_as_it_was_made():
    found = readings(made_up_runs())
    assert found["h grows with depth", "residual"] == "shown"
    assert found["h grows less than in residual", "block"] == "shown"
    assert found["gradients more even than in residual", "block"] == "shown"
    assert found["the embedding is a sink", "block"] == "shown"
    assert found["the embedding is a sink", "residual"] == "refuted"
    assert found["depth weights sharpen in training", "block"] == "shown"
    assert found["depth weights sharpen in training", "residual"] == "refuted"


def test_what_a_record_rounds_off_is_no_effect():
    """The plain residual's shares are equal, and with four digits off by the same in every seed."""
    runs = made_up_runs()
    equal = [float(f"{share:.4g}") for share in EQUAL]
    for run in runs:
        if run["arm"] == "residual":
            run["measured"]["source_share"] = equal
    found = [one for one in claims(made_up(runs)) if one.claim.endswith("is a sink")]
    assert {(one.value, one.p_value, one.reading) for one in found if one.arm == "residual"} == {(0.0, 1.0, "refuted")}


def test_the_picture_is_made_where_runs_or_all_of_an_arm_diverged():
    runs = made_up_runs(2)
    for left in ([*runs[:2], lost(runs[2]), runs[3]], [*runs[:2], *map(lost, runs[2:])]):
        (made,) = pictures(made_up(left))
        assert len(made.charts) == 9

"""Retrofits: the rule for rates and the claims, by hand; and that the lab's numbers are those of `attach`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from attnres import Transformer, UsageError
from attnres.lab.arms import arm_model
from attnres.lab.outcome import Outcome
from attnres.lab.retrofit import run
from attnres.lab.retrofit.claims import differences, finding, statements
from attnres.lab.retrofit.options import DEFAULTS
from attnres.lab.retrofit.plan import Options, parse_arm, plan, trial
from attnres.lab.retrofit.record import RetrofitRecord
from attnres.lab.retrofit.tables import retrofit_tables
from attnres.lab.tuning import beyond, choose
from attnres.train.sweep import JobState
from tests.lab.conftest import several_fast
from tests.lab.sample import parsed

SHARES = (0.05, 1.0)


@dataclass
class Run:
    factor: float
    loss: float
    done: bool = True


@pytest.mark.parametrize(
    ("losses", "following"),
    [
        ({0.25: 3.0, 0.5: 2.0, 1.0: 3.0}, None),
        ({0.25: 1.0, 0.5: 2.0, 1.0: 3.0}, 0.125),
        ({0.25: 3.0, 0.5: 2.0, 1.0: 1.0}, 2.0),
        ({0.25: 1.0, 0.5: 2.0, 1.0: math.inf}, 0.125),
        ({0.25: math.inf, 0.5: math.inf}, None),
        ({0.1: 1.0, 0.2: 2.0, 0.8: 3.0, 1.6: 4.0}, 0.05),
        ({0.1: 4.0, 0.2: 3.0, 0.8: 2.0, 1.6: 1.0}, 3.2),
        ({1.0: 1.0}, None),
    ],
)
def test_a_grid_goes_on_where_its_best_lies_at_an_edge(losses, following):
    runs = [Run(factor, loss, math.isfinite(loss)) for factor, loss in losses.items()]
    assert beyond(runs) == following


def test_the_mean_over_tuning_seeds_decides():
    runs = [Run(0.5, 1.0), Run(0.5, 4.0), Run(1.0, 2.0), Run(1.0, 2.5), Run(2.0, 0.1), Run(2.0, 0.1, done=False)]
    assert choose(runs) == 1.0


def retrofit(shift: dict[tuple[str, float], float]) -> dict:
    """A record of three seeds, in which arms end so far from the plain twin, give or take a thousandth."""
    arms = [{"name": "residual", "connection": "residual", "flops_per_token": 100.0}]
    arms += [{"name": "block", "connection": "block:total=true", "flops_per_token": 110.0}]
    arms += [{"name": "block@1", "connection": "block:total=true", "rate": 1.0, "flops_per_token": 110.0}]
    runs, tuning = [], []
    for share in SHARES:
        for arm in arms:
            one = {"arm": arm["name"], "fraction": share, "status": "done", "steps": round(100 * share)}
            tuning += [{**one, "seed": 1000, "factor": factor, "loss": 2 + factor} for factor in (0.25, 0.5, 1.0)]
            for seed in range(3):
                before, noise = 1.5 + 0.2 * seed, 0.001 * arms.index(arm) * (seed == 1)
                loss = before - 0.1 * share + shift.get((arm["name"], share), 0.0) + noise
                ended = {"seed": seed, "factor": 0.5, "loss": loss, "curve": [[0, before], [one["steps"], loss]]}
                runs.append({**one, **ended, "step_seconds": 0.1 * (1.2 if arm["name"] == "block" else 1.0)})
    plain = [{"seed": seed, "status": "done", "loss": 1.5 + 0.2 * seed} for seed in (0, 1, 2, 1000)]
    return {"arms": arms, "fractions": list(SHARES), "plain": plain, "tuning": tuning, "runs": runs}


def test_claims_are_on_paired_differences():
    record = parsed(RetrofitRecord, retrofit({("block", 1.0): -0.03, ("block@1", 1.0): 0.03}))
    assert differences(record, 1.0)["block"] == pytest.approx([-0.03, -0.029, -0.03])
    readings = {(one.claim, one.arm): one.reading for one in statements(record)}
    assert readings["ends below the plain twin after 100% more", "block"] == "shown"
    assert readings["ends below the plain twin after 100% more", "block@1"] == "refuted"
    assert readings["ends below the plain twin after 5% more", "block"] == "refuted", "no gain of a hundredth"
    assert readings["the connection wants ten times the rate of the weights", "block - block@1, 100%"] == "shown"
    assert "is shown after 5% for none of 2 arms; after 100% for block (-0.0297 ± 0.0003) (nats" in finding(record)


def test_tables_tell_cost_and_where_a_grid_ended():
    first, _, arms, shown = retrofit_tables(parsed(RetrofitRecord, retrofit({})))
    assert first.title == "After 5% more: 5 steps" and "1.7000 before" in first.note
    assert "steps" not in first.columns
    assert [row[3] for row in first.rows] == ["x0.5*"] * 3, "the lowest that was tried is the best"
    assert arms.rows[0][2] == "", "the plain twin has no connection's parameters"
    assert arms.rows[1] == ("block", "block:total=true", "10x", "+0.000000", "1.100", "1.20 [1.20, 1.20]")
    assert shown.rows[0][0] == "ends below the plain twin after 5% more"


def test_a_step_time_that_seeds_do_not_agree_on_is_withheld():
    """As where other work met the one arm and not its twin."""
    data = retrofit({})
    of_block = [run for run in data["runs"] if (run["arm"], run["fraction"]) == ("block", 1.0)]
    of_block[0]["step_seconds"] = 0.17
    assert retrofit_tables(parsed(RetrofitRecord, data))[2].rows[1][-1] == "1.20 [1.20, 1.70]"
    of_block[0]["step_seconds"] = 0.19
    assert retrofit_tables(parsed(RetrofitRecord, data))[2].rows[1][-1] == "withheld"


def test_the_loss_before_is_of_the_plain_models_that_are_done():
    data = retrofit({})
    data["plain"][0] |= {"status": "failed", "loss": math.nan}
    first, *_ = retrofit_tables(parsed(RetrofitRecord, data))
    assert "seeds; 1.8000 before." in first.note, "of seeds 1 to 3 alone"
    for one in data["plain"]:
        one |= {"status": "failed", "loss": math.nan}
    first, *_ = retrofit_tables(parsed(RetrofitRecord, data))
    assert "over seeds. lr:" in first.note


def test_rates_that_print_alike_are_arms_apart():
    names = [parse_arm(f"block@{rate}").name for rate in ("1", "1.0000001", "10", "0.5")]
    assert names == ["block@1", "block@1.0000001", "block", "block@0.5"]
    with pytest.raises(UsageError, match=r"fractions: give .* at most 1e\+06, each once"):
        plan(Options(arms=("residual", "block"), fractions=(0.5, 0.50000001)), Path("nowhere"))


def test_the_table_says_the_steps_where_they_are_not_equal():
    data = retrofit({})
    for one in data["runs"]:
        one["steps"] -= one["arm"] != "residual"
    first, *_ = retrofit_tables(parsed(RetrofitRecord, data))
    assert first.columns[4] == "steps" and [row[4] for row in first.rows] == ["5", "4", "4"]
    assert first.title.endswith("5 steps") and "spends the operations of the first one" in first.note


@pytest.mark.parametrize(("ended", "status"), [("done", "done"), ("failed", "diverged")])
def test_training_that_makes_a_model_worse_counts(ended, status, monkeypatch, tmp_path):
    """Such a run did not diverge, as one that begins at random did: leaving it out would flatter its arm."""
    worse = Outcome(status="diverged", loss=1.7, curve=((0, 1.5), (30, 1.7)))
    monkeypatch.setattr(run, "outcome_of", lambda folder, state: worse)
    one = trial(plan(Options(), tmp_path), parse_arm("block"), 0.05, 0, 1.0)
    recorded = run._recorded(one, JobState(one.job, status=ended))
    assert (recorded.status, recorded.loss, recorded.steps) == (status, 1.7, 30)
    assert worse.status == "diverged", "what was read stays as it was"


@pytest.mark.parametrize("arm", several_fast(["block", "full", "rms-block", "delta:block_size=4", "x0"], "block"))
def test_the_models_are_those_of_attach(arm):
    """transformers' own llama, attached to, has the logits and the gradients of the model that is trained here."""
    pytest.importorskip("transformers")
    import attnres.hf
    from tests.model.test_backbones import transformers_twin

    model = DEFAULTS.model
    plain = Transformer(model, seed=1)
    ours = Transformer(arm_model(parse_arm(arm).connection, model), seed=1)
    theirs = attnres.hf.attach(transformers_twin(plain), arm)
    for each in (plain, ours, theirs):  # the embedding's 0.02 makes float32's rounding 50 times larger in gradients
        each.double()
    parameters = dict(attnres.hf.connection_of(theirs).named_parameters())
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in ours.connection.named_parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)
            parameters[name].copy_(parameter)
    tokens = torch.randint(256, (2, 20), generator=draw)
    here, there = ours(tokens), theirs(tokens).logits
    assert (here - plain(tokens)).abs().max() > 1e-3, "the connection is at work"
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)
    upstream = torch.randn(here.shape, generator=draw, dtype=here.dtype)
    here.backward(upstream)
    there.backward(upstream)
    for name, parameter in ours.connection.named_parameters():
        torch.testing.assert_close(parameter.grad, parameters[name].grad, rtol=1e-3, atol=1e-4)
    embedding = theirs.get_input_embeddings().weight.grad
    size = embedding.abs().max().item()  # an embedding of 0.02 has gradients fifty times larger than the rest
    torch.testing.assert_close(ours.embedding.weight.grad, embedding, rtol=1e-3, atol=1e-3 * size)

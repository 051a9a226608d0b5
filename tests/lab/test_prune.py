"""What each sublayer is worth: against models without it, and the command."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnres import UsageError, connection_names
from attnres.cli import main
from attnres.connections import canonical_connection
from attnres.data import open_corpus
from attnres.files import PARTIAL
from attnres.lab.prune.claims import gini, prune_statements, removable
from attnres.lab.prune.measure import added_losses, pruned
from attnres.lab.prune.record import PruneRecord
from attnres.lab.prune.tables import prune_tables
from attnres.lab.trained import find_runs, open_runs
from attnres.model import Transformer, TransformerConfig
from tests.lab.conftest import ARMS, SITES, several_fast
from tests.lab.sample import parsed


def model_of(name: str, **options) -> Transformer:
    connection = canonical_connection(name, **options)
    config = TransformerConfig(dim=16, layers=SITES // 2, heads=2, context=16, connection=connection, norm_eps=1e-12)
    model = Transformer(config).double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.connection.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
        for sublayer in model.sublayers:
            sublayer.out.weight.mul_(4)
        model.head.weight.mul_(20)
    return model


def batch(seed: int = 0, sequences: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (sequences, 13))


def loss_of(model: Transformer, hidden: torch.Tensor, tokens: np.ndarray) -> float:
    return F.cross_entropy(model.logits(hidden).flatten(0, 1), torch.from_numpy(tokens)[:, 1:].flatten()).item()


@pytest.mark.parametrize("name", several_fast(connection_names(), "highway", "mhc", "block", "delta"))
@torch.no_grad()
def test_a_sublayer_that_is_off_is_one_whose_output_matrix_is_zero(name):
    """The same for every connection, against the whole model run again; over two batches of unequal size."""
    model = model_of(name)
    batches = [batch(), batch(1, 1)]
    base, added = added_losses(model, batches)

    def mean_loss() -> float:
        losses = [loss_of(model, model.hidden(torch.from_numpy(part[:, :-1])), part) for part in batches]
        return (3 * losses[0] + losses[1]) / 4

    assert base == pytest.approx(mean_loss(), rel=1e-6)
    for site in range(SITES):
        weight = model.sublayers[site].out.weight
        kept = weight.clone()
        weight.zero_()
        assert base + added[site] == pytest.approx(mean_loss(), rel=1e-6)
        weight.copy_(kept)
    assert np.abs(added).max() > 1e-3


@torch.no_grad()
def test_for_attnres_zero_is_removal_from_the_softmax():
    """The definition of Full written out without the source: the mass that a zero takes only scales h."""
    model, tokens = model_of("full"), batch()
    base, added = added_losses(model, [tokens])
    connection = model.connection
    sublayers = model.bound_sublayers(12)

    def mixture(sources: list[torch.Tensor], site: int) -> torch.Tensor:
        stack = torch.stack(sources)
        keys = stack * torch.rsqrt(stack.square().mean(-1, keepdim=True) + 1e-6) * connection.gain[site]
        return (torch.softmax(keys @ connection.query[site], 0).unsqueeze(-1) * stack).sum(0)

    for removed in range(SITES):
        sources = [model.embedding(torch.from_numpy(tokens[:, :-1]))]
        for site, sublayer in enumerate(sublayers):
            if site != removed:
                sources.append(sublayer(mixture(sources, site)))
        assert len(sources) == SITES
        assert base + added[removed] == pytest.approx(loss_of(model, mixture(sources, SITES), tokens), rel=1e-6)


@torch.no_grad()
def test_for_the_plain_residual_off_is_skipped():
    model, tokens = model_of("residual"), batch()
    base, added = added_losses(model, [tokens])
    for removed in range(SITES):
        x = model.embedding(torch.from_numpy(tokens[:, :-1]))
        for site, sublayer in enumerate(model.bound_sublayers(12)):
            x = x if site == removed else x + sublayer(x)
        assert base + added[removed] == pytest.approx(loss_of(model, x, tokens), rel=1e-6)


def test_gini_and_removable_of_known_costs():
    assert gini([1, 1, 1, 1]) == pytest.approx(0)
    assert gini([0, 0, 0, 1]) == pytest.approx(3 / 4)
    assert gini([1, 3]) == pytest.approx(1 / 4)
    assert gini([-1, 0, 0, 1]) == pytest.approx(3 / 4) and gini([0, -1]) == 0
    values = np.random.default_rng(0).exponential(size=9)
    pairs = np.abs(values[:, None] - values[None]).mean() / (2 * values.mean())
    assert gini(list(values)) == pytest.approx(pairs)
    assert removable([0.0, 0.009, 0.5, -0.2]) == pytest.approx(3 / 4)


def record_of(cost: dict[str, float], seeds: int = 4) -> dict:
    generator = np.random.default_rng(0)
    return {
        "tokens": 64,
        "baseline": "residual",
        "config": {"model": {"layers": 3}},
        "runs": [
            {
                "arm": arm,
                "seed": seed,
                "status": "done",
                "loss": 1.5,
                "added": list(value * (1 + 0.02 * generator.standard_normal(SITES))),
            }
            for seed in range(seeds)
            for arm, value in cost.items()
        ],
    }


def test_statements_follow_the_costs():
    record = record_of({"block": 0.2, "residual": 0.005, "x0": 0.005})
    record["runs"].append({"arm": "x0", "seed": 9, "status": "unfinished"})
    record = parsed(PruneRecord, record)
    found = {(statement.claim, statement.arm): statement for statement in prune_statements(record)}
    median = found["a sublayer costs more than in residual, median", "block"]
    assert median.reading == "shown" and median.value == pytest.approx(0.195, rel=0.05)
    assert found["fewer are removable than in residual", "block"].value == pytest.approx(-1)
    assert found["a sublayer costs more than in residual, median", "x0"].reading == "refuted"
    costs = prune_tables(record)[0]
    assert [row[0] for row in costs.rows] == ["residual", "x0", "block"]
    assert costs.rows[1][-1] == "4, 1 unfinished"


def test_runs_of_other_configurations_are_refused_by_name(sweep, tmp_path):
    one, other = sweep.planned[0].job.folder, tmp_path / "other"
    shutil.copytree(sweep.planned[1].job.folder, other)
    assert [run.arm for run in open_runs([one, other])] == list(ARMS[:2])
    record = json.loads((other / "config.json").read_text())
    record["config"]["model"]["layers"] = 7
    record["config"]["optimizer"]["lr"] = 0.5
    (other / "config.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"different configurations \(model.layers\)"):
        open_runs([one, other])


def test_a_run_that_began_with_another_is_no_seed_of_one_that_did_not(sweep, tmp_path):
    planned = sweep.planned[0], next(run for run in sweep.planned if run.arm == ARMS[0] and run.seed == 1)
    plain = [run.job.folder for run in planned]
    continued = [tmp_path / "0", tmp_path / "1"]
    for folder, copy in zip(plain, continued, strict=True):
        shutil.copytree(folder, copy)
        record = json.loads((copy / "config.json").read_text())
        record["config"]["start_from"] = str(folder)
        (copy / "config.json").write_text(json.dumps(record))
    assert len(open_runs(continued)) == 2, "each from its own"
    for pair in ([plain[0], continued[1]], [continued[0], plain[1]]):
        with pytest.raises(UsageError, match=r"different configurations \(start_from\)"):
            open_runs(pair)


def test_a_run_that_cannot_keep_what_is_measured_is_refused_before(sweep, tmp_path, monkeypatch):
    (run,) = open_runs([shutil.copytree(sweep.planned[0].job.folder, tmp_path / "run")])
    corpus = open_corpus(run.config.data)
    monkeypatch.setattr("attnres.lab.prune.measure.os.access", lambda path, mode: path != run.folder.path)
    with monkeypatch.context() as patch:
        patch.setattr("attnres.lab.prune.measure.load_run", lambda _: pytest.fail("it was measured first"))
        with pytest.raises(UsageError, match="run cannot be written, where what is measured of a run stays"):
            pruned(run, corpus, 64)
    with monkeypatch.context() as patch:
        patch.setattr("attnres.lab.prune.measure.os.access", lambda *_: True)
        (rubbish := run.folder.path / f".prune.json.1a2b3c4d{PARTIAL}").touch()
        measured = pruned(run, corpus, 64)
    assert not rubbish.exists(), "of a command that was killed"
    assert pruned(run, corpus, 64) == measured, "what is there already is only read"


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (lambda entries: json.dumps(entries | {"added": entries["added"][:4]}), "with 4 of 6 sublayers"),
        (lambda entries: json.dumps(entries)[:-9], "not valid JSON"),
    ],
)
def test_a_damaged_record_of_a_run_is_refused_with_what_to_do(sweep, tmp_path, damaged, message):
    (run,) = open_runs([shutil.copytree(sweep.planned[0].job.folder, tmp_path / "run")])
    corpus, stored = open_corpus(run.config.data), run.folder.path / "prune.json"
    measured = pruned(run, corpus, 64)
    stored.write_text(damaged(json.loads(stored.read_text())))
    with pytest.raises(UsageError, match=f"{message}.*delete it"):
        pruned(run, corpus, 64)
    stored.unlink()
    assert pruned(run, corpus, 64).added == measured.added


def test_from_runs_to_record_tables_and_page(sweep, tmp_path, capsys, monkeypatch, quick_figures):
    monkeypatch.setenv("COLUMNS", "160")
    folder = tmp_path / "runs"
    for run in sweep.planned:
        shutil.copytree(run.job.folder, folder / run.arm.partition(":")[0] / f"seed-{run.seed}")
    (folder / "block" / "seed-1" / "summary.json").unlink()
    arguments = ["prune", "--runs", str(folder), "--tokens", "70", "--record", str(tmp_path / "prune.json")]
    arguments += ["--out", str(tmp_path / "page")]
    with monkeypatch.context() as patch:  # a signal once the first run is measured, and one before
        for patience, left in ((1, "nothing had been saved"), (2, "what was measured is saved")):
            calls = [None] * patience

            def measured(*arguments, calls=calls):
                calls.pop()
                if not calls:
                    raise KeyboardInterrupt
                return pruned(*arguments)

            patch.setattr("attnres.lab.prune.run.pruned", measured)
            assert main(arguments) == 130 and left in capsys.readouterr().err
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "Loss added" in shown and "(unfinished)" in shown
    assert (tmp_path / "page" / "figures" / "prune.png").exists()
    record = json.loads((tmp_path / "prune.json").read_text())
    assert record["baseline"] == "residual" and record["tokens"] == 64, "whole sequences"
    assert sorted(run["status"] for run in record["runs"]) == ["done"] * 3 + ["unfinished"]
    assert {run["arm"] for run in record["runs"]} == set(ARMS)
    assert all(len(run["added"]) == SITES for run in record["runs"] if run["status"] == "done")
    monkeypatch.setattr("attnres.cli._experiment.write_results", lambda records, out: out)  # drawn once is enough
    kept = folder / "residual" / "seed-0" / "prune.json"
    before = kept.stat().st_mtime_ns
    assert main(arguments) == 0 and kept.stat().st_mtime_ns == before
    again = json.loads((tmp_path / "prune.json").read_text())
    assert again["runs"] == record["runs"]
    fewer = ["prune", str(folder / "residual" / "seed-0"), *arguments[3:]]
    capsys.readouterr()
    assert main(fewer) == 2 and "this command leaves out (" in capsys.readouterr().err
    assert json.loads((tmp_path / "prune.json").read_text())["runs"] == record["runs"]


def test_runs_that_are_none_or_the_same_are_refused(sweep, tmp_path, capsys):
    done = sweep.planned[0].job.folder
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, message in (
        ([empty], "no run there"),
        ([done, sweep.folder / "residual" / "seed-0" / "..", done], "both residual, seed 0"),
    ):
        code = main(["prune", *map(str, arguments), "--record", str(tmp_path / "record.json")])
        error = capsys.readouterr().err
        assert code == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "record.json").exists()


def test_runs_are_found_in_folders_of_any_depth(sweep):
    assert find_runs([sweep.folder]) == sorted(run.job.folder for run in sweep.planned)
    assert find_runs([sweep.planned[0].job.folder] * 2) == [sweep.planned[0].job.folder]


def test_runs_behind_links_are_found_once(sweep, tmp_path):
    run = sweep.planned[0].job.folder
    (tmp_path / "linked").symlink_to(run)
    (tmp_path / "round").symlink_to(tmp_path)
    assert find_runs([tmp_path]) == [tmp_path / "linked"]


def test_what_lies_in_a_run_or_is_another_programs_is_no_run(sweep, tmp_path):
    """steps-N is the end that a run had before it went on; the config.json beside it is of a transformers model."""
    run = tmp_path / "checkpoints" / "block" / "seed-0"
    shutil.copytree(sweep.planned[0].job.folder, run)
    shutil.copytree(sweep.planned[0].job.folder, run / "steps-3")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert find_runs([tmp_path]) == [run]
    (run / "config.json").write_text('{"config": ')
    with pytest.raises(UsageError, match="seed-0"):
        open_runs(find_runs([tmp_path]))

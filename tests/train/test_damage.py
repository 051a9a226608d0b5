"""Runs whose files are lost, damaged or another run's, whose numbers leave the finite, whose disk is full."""

import json
import shutil
from contextlib import ExitStack

import pytest
import torch
from rich.console import Console

from attnres.cli._run_display import RunDisplay
from attnres.data import load_tokenizer
from attnres.errors import UsageError
from attnres.files import sha256
from attnres.train import Interrupted, RunStopped, load_run, read_metrics, train
from attnres.train.folder import RunFolder
from attnres.train.trainer import Trainer
from tests.data.text import library_tokenizer
from tests.disk import files_up_to
from tests.train.conftest import results, steps_on_disk, stop_at, weights


@pytest.mark.parametrize("lost", ["checkpoints", "checkpoints/step-00000012/model.safetensors", "tokenizer.json"])
def test_a_finished_run_that_lost_something_is_made_whole(make_config, tmp_path, lost):
    """What train calls done, generate can load: the last part is trained again, to the same bits."""
    config = make_config(steps=12)
    train(config, tmp_path)
    expected = weights(tmp_path, 12)
    path = tmp_path / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    train(config, tmp_path)
    assert weights(tmp_path, 12) == expected and load_run(tmp_path).step == 12


@pytest.mark.parametrize(
    ("lost", "said"), [("checkpoints", "from the start"), ("checkpoints/step-00000012", "the steps from 8 on")]
)
def test_a_finished_run_that_lost_its_end_is_not_done_until_it_is_trained_again(make_config, tmp_path, lost, said):
    config, told = make_config(steps=12), []
    train(config, tmp_path)
    shutil.rmtree(tmp_path / lost)
    with pytest.raises(Interrupted):
        train(config, tmp_path, lambda event: (told.append(event), stop_at(9)(event)))
    assert not (tmp_path / "summary.json").exists()
    assert said in told[0]["note"]


@pytest.mark.parametrize("other", ["summary.json", "tokenizer.json"])
def test_a_finished_run_that_lost_its_metrics_has_a_summary(make_config, tmp_path, capsys, other):
    config = make_config(steps=4)
    expected = train(config, tmp_path)["validation_loss"]
    for name in ("metrics.jsonl", other):
        (tmp_path / name).unlink()
    summary = train(config, tmp_path)
    assert (summary["validation_loss"], summary["step_seconds"]) == (expected, None)
    RunDisplay(Console(width=200)).done(summary, tmp_path)
    assert "(best " in (shown := capsys.readouterr().out) and "per step" not in shown


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"steps": 2', '{"steps": 2}'])
def test_a_damaged_summary_is_made_anew(make_config, tmp_path, content):
    config = make_config(steps=2)
    expected = train(config, tmp_path)["validation_loss"]
    (tmp_path / "summary.json").write_text(content)
    assert train(config, tmp_path)["validation_loss"] == expected
    assert json.loads((tmp_path / "summary.json").read_text())["validation_loss"] == expected


def test_a_tokenizer_that_is_not_the_runs(make_config, tmp_path):
    config, file = make_config(steps=2), tmp_path / "tokenizer.json"
    train(config, tmp_path)
    for content in ("{}", "[]", "{"):
        file.write_text(content)
        with pytest.raises(UsageError, match=r"tokenizer.json is damaged .*; without it the command .* writes it anew"):
            load_run(tmp_path)
    library_tokenizer().save(str(tmp_path / "library.json"))
    file.write_text(json.dumps(load_tokenizer(str(tmp_path / "library.json")).to_json()))
    with pytest.raises(UsageError, match=r"tokenizer.json is another model's: it has 2\d\d ids, and the run 256; "):
        load_run(tmp_path)
    file.unlink()
    with pytest.raises(UsageError, match=r"tokenizer.json is gone; .* the command that trained the run writes it anew"):
        load_run(tmp_path)
    train(config, tmp_path)
    assert load_run(tmp_path).step == 2
    file.write_text('{"kind": "tokenizers", "record": {}}')
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(UsageError, match="is not the tokenizer of this run; delete it"):
        train(config, tmp_path)


@pytest.mark.parametrize(
    "tail",
    [
        b'{"kind": "train", "step": 5, "lo',
        b'{"kind": "train", "step": 5, "loss": 1.0}\n{"kind": "eval", "step": 8, "loss": 1.0}\n',
        b"\xff\x00\n",
        b"\n",
        b"",
    ],
)
def test_metrics_after_a_crash_have_no_line_twice_and_none_missing(make_config, tmp_path, tail):
    config = make_config(steps=8)
    train(config, tmp_path / "straight")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "stopped", stop_at(4))
    with (tmp_path / "stopped" / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    train(config, tmp_path / "stopped")
    assert results(tmp_path / "stopped") == results(tmp_path / "straight")
    lines = (tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(read_metrics(tmp_path / "straight" / "metrics.jsonl"))


def test_damaged_lines_of_metrics_are_counted(tmp_path, caplog):
    good = '{"kind": "eval", "step": 1, "loss": 2.5}'
    (tmp_path / "metrics.jsonl").write_text(f"{good}\n\x00\x00\n[]\n{good}\n" + good[:9])
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2
    assert caplog.messages == [f"{tmp_path / 'metrics.jsonl'}: 2 damaged lines are left out, the first is line 2"]
    caplog.clear()
    (tmp_path / "metrics.jsonl").write_text(f"{good}\n{good[:9]}")
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1 and not caplog.messages


@pytest.mark.parametrize(
    "damaged",
    [
        '{"kind": "eval", "step": 2}',
        '{"kind": "eval", "step": 2, "loss": "2.5"}',
        '{"kind": "eval", "step": 2, "loss": null}',
        '{"kind": "eval", "step": 2, "loss": true}',
        '{"kind": "eval", "step": 2, "loss": NaN}',
        f'{{"kind": "eval", "step": 2, "loss": 1{"0" * 400}}}',
        '{"kind": "train", "step": 2, "loss": 2.5}',
        '{"kind": ["eval"], "step": 2, "loss": 2.5}',
        '{"step": 2, "loss": 2.5}',
    ],
)
def test_a_record_without_the_numbers_of_its_kind_is_a_damaged_line(tmp_path, caplog, damaged):
    good = '{"kind": "eval", "step": 1, "loss": 2}\n{"kind": "train", "step": 1, "loss": 2.5, "step_seconds": 0.1}'
    (tmp_path / "metrics.jsonl").write_text(f'{good}\n{damaged}\n{{"kind": "processes", "step": 3}}\n')
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [1, 1, 3]
    assert caplog.messages == [f"{tmp_path / 'metrics.jsonl'}: 1 damaged lines are left out, the first is line 3"]


def test_a_finished_run_without_its_last_losses_says_so(make_config, tmp_path, caplog):
    train(make_config(steps=8), tmp_path / "run")
    run, metrics = RunFolder(tmp_path / "run"), tmp_path / "run" / "metrics.jsonl"
    whole = run.evaluations()
    assert whole[-1]["step"] == 8 and not caplog.messages
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if '"step": 8,' not in line))
    assert run.evaluations() == whole[:-1]
    assert caplog.messages == [f"{metrics}: no loss of step 8, the run's last; curves lack what is missing"]


def rewrite_checksums(checkpoint):
    names = ("model.safetensors", "optimizer.safetensors", "state.json")
    (checkpoint / "checksums.json").write_text(json.dumps({name: sha256(checkpoint / name) for name in names}))


def test_a_checkpoint_of_another_model_is_one_line(make_config, tmp_path):
    for name, options in (("one", {}), ("wide", {"dim": 32}), ("blocks", {"connection_options": {"block_size": 1}})):
        train(make_config(steps=4, model=options), tmp_path / name)
    mine = tmp_path / "one" / "checkpoints" / "step-00000004"
    for name, differs in (("wide", "dim is 32 in it and 16"), ("blocks", "block_size")):
        shutil.rmtree(mine)
        shutil.copytree(tmp_path / name / "checkpoints" / "step-00000004", mine)
        (tmp_path / "one" / "summary.json").unlink(missing_ok=True)
        for use in (load_run, lambda folder: train(make_config(steps=4), folder)):
            with pytest.raises(UsageError, match=rf"step-00000004: a checkpoint of another model \(.*{differs}"):
                use(tmp_path / "one")
    # One that does not say of which model it is, as the first versions wrote them, is known by its shapes.
    shutil.rmtree(mine)
    shutil.copytree(tmp_path / "wide" / "checkpoints" / "step-00000004", mine)
    state = json.loads((mine / "state.json").read_text())
    del state["model"]
    (mine / "state.json").write_text(json.dumps(state))
    rewrite_checksums(mine)
    with pytest.raises(UsageError, match=r"is \[.*32\] in it and \[.*16\] in the run"):
        load_run(tmp_path / "one")


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_file_without_tensors_is_one_line(make_config, tmp_path, file):
    train(make_config(steps=4), tmp_path)
    mine = tmp_path / "checkpoints" / "step-00000004"
    (mine / file).write_bytes(b"")
    rewrite_checksums(mine)
    (tmp_path / "summary.json").unlink()
    with pytest.raises(UsageError, match=rf"{file}: cannot be read .*; delete it to go on from another"):
        train(make_config(steps=4), tmp_path)


def test_swapped_checkpoints_are_noticed(make_config, tmp_path, caplog):
    """By their names the run would go on twice from the same step."""
    config = make_config(steps=8)
    with pytest.raises(Interrupted):
        train(config, tmp_path, stop_at(7))
    places = [tmp_path / "checkpoints" / f"step-0000000{step}" for step in (4, 7)]
    places[0].rename(tmp_path / "third")
    places[1].rename(places[0])
    (tmp_path / "third").rename(places[1])
    with pytest.raises(UsageError, match="every checkpoint is damaged"):
        load_run(tmp_path)
    assert "it is of step 4 and has another's name" in caplog.text


def poison_at(step: int, parameter: str):
    """Patch for Trainer.train_step: the update of this step leaves a weight infinite."""
    original = Trainer.train_step

    def train_step(self):
        result = original(self)
        if self.step == step:
            with torch.no_grad():
                self.model.get_parameter(parameter).view(-1)[0] = torch.inf
        return result

    return train_step


def test_non_finite_loss_names_step_site_and_last_good_checkpoint(make_config, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", poison_at(6, "sublayers.3.up.weight"))
        with pytest.raises(RunStopped) as caught:
            train(make_config(), tmp_path)
    message = str(caught.value)
    assert "step 7: the loss is" in message
    assert "the output of site 3 (layer 1 MLP)" in message
    assert f"last good checkpoint: {tmp_path / 'checkpoints' / 'step-00000004'}" in message
    assert "try a lower learning rate (--optimizer.lr) in another folder" in message and "\n" not in message
    assert load_run(tmp_path).step == 4
    assert train(make_config(), tmp_path)["status"] == "done"


@pytest.mark.parametrize("evaluate_every", [2, 3])
def test_non_finite_weights_do_not_reach_the_disk(make_config, tmp_path, monkeypatch, evaluate_every):
    """Poisoned by the very update after which a checkpoint is due; found by evaluating or, at the latest, on saving."""
    monkeypatch.setattr(Trainer, "train_step", poison_at(4, "head.weight"))
    with pytest.raises(RunStopped, match=r"step 4: .*step-00000002"):
        train(make_config(save_every=2, evaluate_every=evaluate_every, keep=1), tmp_path)
    assert steps_on_disk(tmp_path) == [2]


def test_non_finite_before_any_checkpoint(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "train_step", poison_at(1, "head.weight"))
    with pytest.raises(RunStopped, match=r"step 2: .*no checkpoint was saved before"):
        train(make_config(), tmp_path)


def test_non_finite_before_any_step_blames_no_learning_rate(make_config, tmp_path):
    with pytest.raises(RunStopped) as caught:
        train(make_config(model={"embedding_std": 1e39}), tmp_path)
    message = str(caught.value)
    assert "step 0: the loss is nan; first non-finite activation: the embedding" in message
    assert "no step was made yet" in message and "--model.embedding-std 1e+39" in message and "float32" in message
    assert "lower learning rate" not in message


@pytest.mark.parametrize("limit, file", [(1500, "metrics.jsonl"), (20_000, "safetensors")])
def test_full_disk(make_config, tmp_path, limit, file):
    config = make_config(steps=16)
    train(config, tmp_path / "straight")
    told = rf"{file}: File too large, at step \d+; last good .*step-00000004"
    with ExitStack() as full, pytest.raises(RunStopped, match=told) as caught:

        def fill_disk(event):
            if event["kind"] == "saved":
                full.enter_context(files_up_to(limit))

        train(config, tmp_path / "run", fill_disk)
    assert "\n" not in str(caught.value)
    assert steps_on_disk(tmp_path / "run") == [4], "the good one is intact, and what could not be finished is gone"
    train(config, tmp_path / "run")
    assert weights(tmp_path / "run", 16) == weights(tmp_path / "straight", 16)
    assert results(tmp_path / "run") == results(tmp_path / "straight")


@pytest.mark.parametrize("move", [shutil.rmtree, lambda folder: folder.rename(folder.with_name("moved"))])
def test_a_folder_that_vanishes_under_the_run(make_config, tmp_path, move):
    """The next checkpoint made a folder of it again, without config.json and the metrics, and the run said "done"."""

    def vanish(event):
        if event["kind"] == "saved":
            move(tmp_path / "run")

    with pytest.raises(RunStopped) as stopped:
        train(make_config(), tmp_path / "run", vanish)
    gone = tmp_path / "run"
    assert f"{gone / 'metrics.jsonl'}: No such file" in str(stopped.value)
    assert f"at step 8; the run is no longer at {gone}; set that right, then run" in str(stopped.value)
    assert not gone.exists()
    if (moved := tmp_path / "moved").exists():
        train(make_config(), moved)
        train(make_config(), tmp_path / "straight")
        assert weights(moved, 12) == weights(tmp_path / "straight", 12)
        assert results(moved) == results(tmp_path / "straight")

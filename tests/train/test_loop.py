"""A run from the outside: what it writes, how it stops and goes on, what it keeps."""

import dataclasses
import json
import os
import signal
from importlib.util import find_spec

import pytest
import torch

from attnres.data import DataConfig
from attnres.errors import UsageError
from attnres.signals import STOPS
from attnres.train import Interrupted, load_run, read_metrics, train
from attnres.train.trainer import Trainer
from tests.train.conftest import TIMING, results, steps_on_disk, stop_at, weights


@pytest.fixture(autouse=True)
def in_a_terminal():
    """Where nohup started the tests a run would not hear of a closed terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_run_writes_everything(make_config, tmp_path):
    events = []
    config = make_config(steps=10, keep=2)
    summary = train(config, tmp_path / "run", events.append)
    folder = tmp_path / "run"
    records = read_metrics(folder / "metrics.jsonl")
    train_records = [r for r in records if r["kind"] == "train"]
    assert [r["step"] for r in train_records] == list(range(1, 11))
    assert train_records[0].keys() == {"kind", "step", "loss", "lr", "grad_norm", *TIMING}
    assert [r["step"] for r in records if r["kind"] == "eval"] == [0, 4, 8, 10]
    others = [event["kind"] for event in events if event["kind"] not in ("train", "eval")]
    assert others == ["start", *["saved"] * 3]
    assert [event for event in events if event["kind"] not in ("start", "saved")] == records
    assert json.loads((folder / "summary.json").read_text()) == summary
    losses = [r["loss"] for r in records if r["kind"] == "eval"]
    assert summary["status"] == "done"
    assert summary["steps"] == 10
    assert summary["tokens"] == 10 * 2 * 16
    assert summary["validation_loss"] == losses[-1]
    assert summary["best_validation_loss"] == min(losses)
    assert summary["connection"] == "block"
    assert summary["parameters"] == events[0]["parameters"] > 1000
    assert summary["step_seconds"] > 0
    assert summary["peak_memory_bytes"] >= 0
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        [".lock", "checkpoints", "config.json", "metrics.jsonl", "summary.json", "tokenizer.json"]
    )


def test_a_finished_run_only_returns_its_summary_unless_its_text_has_changed(make_config, tmp_path):
    text, run = tmp_path / "text.txt", tmp_path / "run"
    data = DataConfig(paths=(str(text),), cache=str(tmp_path / "cache"))
    config = dataclasses.replace(make_config(steps=2), data=data)
    text.write_text("all work and no play\n" * 400)
    summary, events = train(config, run), []
    assert train(config, run, events.append) == summary
    text.write_text("another text, as long\n" * 400)
    with pytest.raises(UsageError, match="the corpus has changed since this run began"):
        train(config, run, events.append)
    assert events == []


@pytest.mark.parametrize("stopped", [False, True])
def test_newest_and_best_are_kept(make_config, tmp_path, monkeypatch, stopped):
    """A checkpoint that a signal made before the evaluation of its step gets its loss when the run goes on."""
    by_step = {0: 9.0, 2: 3.0, 4: 1.0, 6: 2.0, 8: 5.0, 10: 4.0, 12: 6.0}
    monkeypatch.setattr(Trainer, "evaluate", lambda self, stop: by_step[self.step])
    config = make_config(steps=12, evaluate_every=2, save_every=2, keep=2)
    if stopped:
        with pytest.raises(Interrupted):
            train(config, tmp_path, stop_at(4))
    summary = train(config, tmp_path)
    assert steps_on_disk(tmp_path) == [4, 10, 12]
    assert summary["best_validation_loss"] == 1.0
    assert load_run(tmp_path).step == 12
    assert load_run(tmp_path, best=True).step == 4


@pytest.fixture(scope="session")
def straight(make_config, tmp_path_factory):
    """A run of 8 steps that nothing stopped, with checkpoints at 4 and 8."""
    folder = tmp_path_factory.mktemp("straight")
    train(make_config(steps=8), folder)
    return folder


def assert_goes_on(config, folder, straight):
    """To the same bits, from the step where it was stopped."""
    stopped_at, events = steps_on_disk(folder)[-1], []
    train(config, folder, events.append)
    assert events[0]["step"] == stopped_at
    assert weights(folder, 8) == weights(straight, 8)
    assert results(folder) == results(straight)


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 1), (signal.SIGTERM, 4), (signal.SIGHUP, 7)])
def test_stop_and_go_on_is_bit_equal(make_config, straight, tmp_path, number, step):
    config = make_config(steps=8)
    handlers = [signal.getsignal(n) for n in STOPS]
    with pytest.raises(Interrupted, match=f"stopped at step {step} of 8 .*same command") as caught:
        train(config, tmp_path, stop_at(step, number))
    assert isinstance(caught.value, KeyboardInterrupt)
    assert steps_on_disk(tmp_path)[-1] == step
    assert [signal.getsignal(n) for n in STOPS] == handlers
    assert_goes_on(config, tmp_path, straight)


@pytest.mark.parametrize("step", [0, 8])
def test_a_signal_in_an_evaluation_is_heard_before_its_next_batch(make_config, straight, tmp_path, step, monkeypatch):
    """Whoever sends one may kill soon after: a long evaluation must not stand between it and the checkpoint."""
    config, seen, measured = make_config(steps=8), [], Trainer.total_loss

    def total_loss(trainer, tokens):
        if trainer.step == step and not seen:
            os.kill(os.getpid(), signal.SIGTERM)
        seen.extend([trainer.step] * (trainer.step == step))
        return measured(trainer, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "total_loss", total_loss)
        with pytest.raises(Interrupted, match=f"stopped at step {step} of 8"):
            train(config, tmp_path)
    assert seen == [step]
    assert_goes_on(config, tmp_path, straight)


def test_second_signal_stops_at_once(make_config, tmp_path):
    def twice(event):
        if event["kind"] == "train" and event["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        train(make_config(steps=8), tmp_path, twice)
    assert not isinstance(caught.value, Interrupted)


@pytest.mark.parametrize("fields", [{"steps": 16}, {"seed": 1}, {"optimizer": {"decay": 0.5}}])
def test_another_run_s_folder_is_left_as_it_is(make_config, straight, fields):
    """More steps, too: their learning rate would have fallen twice."""
    before = {path: path.stat().st_mtime_ns for path in straight.rglob("*")}
    with pytest.raises(UsageError, match="holds a run of another configuration"):
        train(make_config(**{"steps": 8, **fields}), straight)
    assert {path: path.stat().st_mtime_ns for path in straight.rglob("*")} == before


def test_what_does_not_change_the_result_may_change(make_config, straight, tmp_path):
    config = make_config(steps=8)
    with pytest.raises(Interrupted):
        train(config, tmp_path, stop_at(3))
    train(dataclasses.replace(config, save_every=3, keep=5, device="cpu"), tmp_path)
    assert weights(tmp_path, 8) == weights(straight, 8)
    assert steps_on_disk(tmp_path) == [3, 6, 8]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tensorboard") is None, reason="extra not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(make_config, tmp_path):
    train(make_config(steps=4, tensorboard=True), tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("loss/train")] == [1, 2, 3, 4]
    assert [e.step for e in events.Scalars("loss/validation")] == [0, 4]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-3), ("bfloat16", 3e-2)])
def test_gpu_learns_as_the_cpu_does_and_goes_on(make_config, tmp_path, precision, tolerance):
    config = make_config(steps=8, precision=precision, device="cuda")
    on_cpu = train(dataclasses.replace(config, device="cpu"), tmp_path / "cpu")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "gpu", stop_at(5))
    on_gpu = train(config, tmp_path / "gpu")
    assert on_gpu["validation_loss"] == pytest.approx(on_cpu["validation_loss"], rel=tolerance)
    assert on_gpu["peak_memory_bytes"] > 0

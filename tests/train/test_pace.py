"""The pace of a run: how long its steps take, and what they wait for."""

from attnres.train import read_metrics, train
from attnres.train.pace import range_over_parts


def test_a_checkpoint_comes_with_the_pace_of_the_process(make_config, tmp_path, monkeypatch):
    """A step of a known time: how much was waiting for data, and none for other processes."""
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))  # every look at it takes a second
    config = make_config(steps=2, save_every=2)
    train(config, tmp_path)
    (record,) = [r for r in read_metrics(tmp_path / "metrics.jsonl") if r["kind"] == "processes"]
    # A step looks before and after itself and its batches.
    assert (record["step_seconds"], record["data_seconds"], record["waited_seconds"]) == ([3.0], [1.0], [0.0])


def test_a_busy_stretch_shows_in_the_range_over_parts():
    assert range_over_parts([1.0] * 20) == [1.0, 1.0]
    assert range_over_parts([1.0] * 16 + [9.0] + [1.0] * 3) == [1.0, 1.0], "one slow step is no busy stretch"
    assert range_over_parts([1.0] * 12 + [2.0] * 6 + [1.0] * 2) == [1.0, 2.0]
    assert range_over_parts([1.0, 3.0, 2.0, 2.0, 2.0]) == [1.0, 3.0]
    assert range_over_parts([1.0, 3.0]) is None, "too few to have parts"

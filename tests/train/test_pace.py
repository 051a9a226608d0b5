"""The pace of a run: how long its steps take, and what they wait for."""

from attnres.train import read_metrics, train


def test_a_checkpoint_comes_with_the_pace_of_the_process(make_config, tmp_path, monkeypatch):
    """A step of a known time: how much was waiting for data, and none for other processes."""
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))  # every look at it takes a second
    config = make_config(steps=2, save_every=2)
    train(config, tmp_path)
    (record,) = [r for r in read_metrics(tmp_path / "metrics.jsonl") if r["kind"] == "processes"]
    # A step looks before and after itself and its batches.
    assert (record["step_seconds"], record["data_seconds"], record["waited_seconds"]) == ([3.0], [1.0], [0.0])

"""The scripts behind docs/VERDICT.md and the ladder of docs/EVIDENCE.md."""

from __future__ import annotations

import itertools

import pytest

from attnres.cli import main

SETTINGS = ("shallow-short", "shallow-long", "deep-short", "deep-long")


def after(option: str, arguments: list[str]) -> str:
    return arguments[arguments.index(option) + 1]


def test_the_verdicts_arms_come_one_after_the_other_and_all_of_a_setting_into_one_record(run_script):
    done, calls = run_script("verdict.sh", "deep-short")
    assert done.returncode == 0
    arms = [call[3 : call.index("--data.dataset")] for call in calls]
    assert arms[0] == ["residual", "interlayer"]
    assert all(longer[:-1] == shorter for shorter, longer in itertools.pairwise(arms))
    assert len(arms[-1]) == 13 and "rms-block:block_size=12" in arms[-1]
    assert {after("--record", call) for call in calls} == {"results/verdict-deep-short.json"}


def test_the_verdicts_long_settings_want_their_arms(run_script):
    done, calls = run_script("verdict.sh", "deep-long")
    assert done.returncode == 2 and calls == [] and "give its arms, residual first" in done.stderr
    done, calls = run_script("verdict.sh", "deeper")
    assert done.returncode == 2 and calls == [] and done.stderr.startswith("deeper: the settings are")


@pytest.mark.parametrize("setting", SETTINGS)
def test_attnres_understands_the_verdict(run_script, setting, monkeypatch, tmp_path):
    given = {"EQUAL": "seconds", "WORKERS": "2", "RUNS": str(tmp_path / "runs")}
    _, [(_, module, *arguments)] = run_script("verdict.sh", setting, "residual", "interlayer", **given)
    planned = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnres.lab.ablation.run.open_corpus", lambda data: planned.append(data) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(arguments)
    assert module == "attnres" and planned[0].dataset == "sympy"
    assert after("--record", arguments) == f"results/verdict-{setting}-seconds.json"


@pytest.mark.parametrize("arguments", [(), ("48",)])
def test_the_ladder_has_16_or_32_layers(run_script, arguments):
    done, calls = run_script("ladder.sh", *arguments)
    assert done.returncode != 0 and "16 or 32" in done.stderr and not calls


@pytest.mark.parametrize("layers", ["16", "32", "32-20"])
def test_attnres_understands_the_ladder(run_script, layers, monkeypatch, tmp_path):
    _, [*before, (_, module, *arguments)] = run_script("ladder.sh", layers, WORKERS="2", RUNS=str(tmp_path / "runs"))
    planned = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnres.lab.scaling.run.open_corpus", lambda data: planned.append(data) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(arguments)
    assert module == "attnres" and planned[0].dataset == "torch"
    record = f"results/ladder-{layers}.json"
    assert after("--record", arguments) == record
    sizes = ["32x24", "32x32", "32x48", "32x56@10", "32x64@10"]
    compiled = ["recipes/ladder/compiled.py", f"{tmp_path}/runs/ladder-32-20", record, *sizes]
    assert before == [compiled] * (layers == "32-20")


def test_the_ladders_largest_sizes_go_on_from_a_copy_of_their_runs(run_script, tmp_path):
    twice = ["recipes/ladder/twice.py", f"{tmp_path}/ladder-16-20", "results/ladder-16-20.json", "16x48", "16x64"]
    done, [first, _] = run_script("ladder.sh", "16-20", RUNS=str(tmp_path))
    assert done.returncode == 0 and first == twice and not list(tmp_path.glob("ladder*")), "from nothing"
    for arm in ("block", "residual"):
        (tmp_path / "ladder-16" / arm / "16x64" / "lr-0.5" / "seed-0").mkdir(parents=True)
    for _ in range(2):
        done, [first, scaling] = run_script("ladder.sh", "16-20", RUNS=str(tmp_path))
        assert done.returncode == 0 and first == twice, done.stderr
        assert {path.parts[-4] for path in tmp_path.glob("ladder-16-20/*/16x64/lr-0.5/seed-0")} == {"block", "residual"}
        assert after("--out", scaling) == f"{tmp_path}/ladder-16-20"
        assert after("--record", scaling) == "results/ladder-16-20.json"

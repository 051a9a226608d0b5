"""Runs that an experiment is given: which count as runs, and which of them compare."""

from __future__ import annotations

import json
import shutil

import pytest

from attnres import UsageError
from attnres.cli import main
from attnres.lab.trained import find_runs, open_runs
from tests.lab.conftest import ARMS


def test_runs_of_other_configurations_are_refused_by_name(sweep, tmp_path):
    one, other = sweep.planned[0].folder, tmp_path / "other"
    shutil.copytree(sweep.planned[1].folder, other)
    assert [run.arm for run in open_runs([one, other])] == list(ARMS[:2])
    record = json.loads((other / "config.json").read_text())
    record["config"]["model"]["layers"] = 7
    record["config"]["optimizer"]["lr"] = 0.5
    (other / "config.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"different configurations \(model.layers\)"):
        open_runs([one, other])


def test_a_run_that_began_with_another_is_no_seed_of_one_that_did_not(sweep, tmp_path):
    planned = sweep.planned[0], next(run for run in sweep.planned if run.arm == ARMS[0] and run.seed == 1)
    plain = [run.folder for run in planned]
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


def test_runs_that_are_none_or_the_same_are_refused(sweep, tmp_path, capsys):
    done = sweep.planned[0].folder
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, message in (
        ([empty], "no run there"),
        ([done, sweep.folder / "residual" / "seed-0" / "..", done], "both residual, seed 0"),
    ):
        code = main(["probe", *map(str, arguments), "--record", str(tmp_path / "record.json")])
        error = capsys.readouterr().err
        assert code == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "record.json").exists()


def test_runs_are_found_in_folders_of_any_depth(sweep):
    assert find_runs([sweep.folder]) == sorted(run.folder for run in sweep.planned)
    assert find_runs([sweep.planned[0].folder] * 2) == [sweep.planned[0].folder]


def test_runs_behind_links_are_found_once(sweep, tmp_path):
    run = sweep.planned[0].folder
    (tmp_path / "linked").symlink_to(run)
    (tmp_path / "round").symlink_to(tmp_path)
    assert find_runs([tmp_path]) == [tmp_path / "linked"]


def test_what_lies_in_a_run_or_is_another_programs_is_no_run(sweep, tmp_path):
    """steps-N is the end that a run had before it went on; the config.json beside it is of a transformers model."""
    run = tmp_path / "checkpoints" / "block" / "seed-0"
    shutil.copytree(sweep.planned[0].folder, run)
    shutil.copytree(sweep.planned[0].folder, run / "steps-3")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert find_runs([tmp_path]) == [run]
    (run / "config.json").write_text('{"config": ')
    with pytest.raises(UsageError, match="seed-0"):
        open_runs(find_runs([tmp_path]))

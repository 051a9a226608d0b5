"""A message names the flag, which is what its reader can type."""

from __future__ import annotations

import pytest

from attnres.cli import main
from attnres.cli._flags import with_flags
from attnres.cli.compare import command_for
from attnres.cli.cost import command as cost


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("batch_size must be at least 1", "--batch-size must be at least 1"),
        ("layers must be at least 1", "--model.layers must be at least 1"),
        ("set dataset_column to one of: a", "set --data.dataset-column to one of: a"),
        ("set --data.dataset-column to one of: a", "set --data.dataset-column to one of: a"),
        ("optimizer.lr is 0.02 there and 0.5 here", "--optimizer.lr is 0.02 there and 0.5 here"),
        ("the layers must be even", "the layers must be even"),
        ("runs/batch_size/seed-0: no such folder", "runs/batch_size/seed-0: no such folder"),
        ("hidden must be even", "hidden must be even"),  # of the model or of the optimizer
        ("connection full:heads=0: heads must be", "connection full:heads=0: heads must be"),
    ],
)
def test_fields_become_flags(message, expected):
    assert with_flags(message, command_for([])) == expected


def test_a_field_of_another_command_stays():
    assert with_flags("block_size must be a whole number", command_for([])) == "block_size must be a whole number"
    assert with_flags("block_size 9 is more than", cost) == "--block-size 9 is more than"


def test_the_command_line_says_it(capsys):
    assert main(["compare", "residual", "full", "--model.layers", "0"]) == 2
    assert "--model.layers must be a whole number of at least 1, not 0" in capsys.readouterr().err


LONG = "99999999999999999999"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--steps", LONG],
        ["train", "--validation-tokens", LONG],
        ["train", "--pipeline", LONG],
        ["compare", "--seeds", LONG],
        ["ablate", "--tuning-seeds", LONG],
        ["bench", "operator", "--rounds", LONG],
    ],
)
def test_more_than_anything_is_counted_to_is_one_line_that_names_the_flag(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    *_, flag, value = arguments
    assert error.count("\n") == 1 and value in error and " must be at most " in error
    assert f"attnres: {flag} must" in error
    assert not list(tmp_path.iterdir())


def test_a_step_that_no_memory_holds_is_refused_before_there_is_a_folder(capsys, tmp_path):
    sizes = ["--batch-size", "2000000000", "--accumulate", "2000000000"]
    assert main(["train", str(tmp_path / "run"), *sizes]) == 2
    assert "is too large; give a smaller --batch-size" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_word_that_begins_a_clause_is_a_field():
    told = with_flags("runs/a holds another: seed is 8 there and 4 here; steps is 300 there. Choose", command_for([]))
    assert told == "runs/a holds another: --seed is 8 there and 4 here; --steps is 300 there. Choose"

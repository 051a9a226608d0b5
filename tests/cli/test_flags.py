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

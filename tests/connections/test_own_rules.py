"""`attnres check`: silent for what is right, a line for each way to be wrong; rules from a file of the user's own."""

from __future__ import annotations

from functools import partial

import pytest

from attnres import UsageError, connection_names, make_connection
from attnres.cli import main
from attnres.connections import _check as checks
from attnres.connections import canonical_connection
from attnres.connections._sound import check_apart, check_rule, randomised
from attnres.train.folder import RunFolder
from tests.connections import wrong_rules as wrong

ALL_BUT_COMPILED = [check for check in checks.CHECKS if check is not checks.compiled]


@pytest.mark.parametrize("name", connection_names())
def test_no_run_of_what_is_here_is_refused(name):
    """Every run begins with this."""
    check_rule(name, 48, 7)


@pytest.mark.parametrize("name", ["decay", "block:block_size=3,query=input", "hc"])
def test_the_checks_find_nothing_in_what_is_right(name, monkeypatch):
    """Random queries of the input choose sharply: rounding turns a choice into another's, at a token or two."""
    monkeypatch.setattr(checks, "CHECKS", ALL_BUT_COMPILED)
    make = partial(wrong.Decay, 48) if name == "decay" else partial(make_connection, name, 48)
    assert [found for found in checks.findings(make) if found[1]] == []


@pytest.mark.parametrize(
    ("check", "rule", "message"),
    [
        (checks.travels, wrong.NoTuple, "scatter returns a Tensor; one value is written (value,)"),
        (checks.starts, wrong.Double, "decay.0 is torch.float64"),
        (checks.any_depth, wrong.Seven, "with 8 it fails: IndexError"),
        (checks.linear, wrong.Clamped, "gather is not linear at site 0"),
        (checks.apart, wrong.TurnsTheText, "what a token reads depends on other tokens"),
        (checks.apart, wrong.CountsPlaces, "what a token reads depends on its place"),
        (checks.learns, wrong.Unregistered, "decays is no parameter"),
        (checks.learns, wrong.Forgets, "what sublayer 2 returns does not"),
        (checks.matrix, wrong.Wrong, "it is not, at site 0"),
        (checks.pure, wrong.InPlace, "site 0 changes its values in place"),
        (checks.pure, wrong.Keeps, "two batches disturb each other by the share that it keeps on itself"),
        (checks.splits, wrong.Splits, "it does not, split at site 1"),
        (checks.fused, wrong.Wrong, "the outputs differ"),
        (checks.recomputed, wrong.Counts, "the outputs differ"),
        (checks.gradients, wrong.Halves, "the gradient of the embedding differs"),
        (checks.per_site, wrong.Shared, "uses decay.0, as an earlier one does"),
        (checks.bfloat16, wrong.Wide, "it becomes torch.float32"),
        (checks.bfloat16, wrong.Rounds, "moves what site 0 gives 0 times as far as in float32"),
        (checks.saved, wrong.Remembers, "it does not"),
    ],
)
def test_what_breaks_the_protocol_is_found(check, rule, message, monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", [check])
    ((_, problem),) = checks.findings(partial(rule, 48))
    assert problem and message in problem and "\n" not in problem


def test_a_rule_that_draws_at_random_keeps_tokens_apart():
    check_apart(randomised(wrong.Drops(48, 7)))


SOURCE = """
import torch
from attnres import Connection

class MyRule(Connection):
    def __init__(self, dim, sites, rate=0.5):
        super().__init__(dim, sites)
        self.rate = rate
    def weigh(self, values, site):
        return ()
    def gather(self, values, weights, site):
        return values[0]
    def scatter(self, values, weights, site, h, y):
        return (values[0] + self.rate * y,)

class Bent(MyRule):
    def gather(self, values, weights, site):
        return values[0].relu()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_connection_from_a_file(mine):
    made = make_connection("mine.py:MyRule:rate=0.25", 4, 2)
    assert (type(made).__name__, made.rate) == ("MyRule", 0.25)
    assert type(make_connection(f"{mine}/mine.py:MyRule", 4, 2)) is type(made)
    assert canonical_connection("mine.py:MyRule:rate=0.5") == "mine.py:MyRule"


CLASS = """
from torch import nn
from attnres.connections import Connection
class A(Connection):
    weigh = gather = scatter = None
    def __init__(self, dim, sites, rate):
        """


@pytest.mark.parametrize(
    ("connection", "source", "message"),
    [
        ("none.py:MyRule", None, "none.py: no such file, seen from"),
        ("mine.py:Rule", None, "no subclass of Connection is called 'Rule'; it defines MyRule, Bent"),
        ("mine.py:MyRule:speed=2", None, "has no option 'speed'; it takes rate"),
        ("mine.py:MyRule:rate=NaN", None, "rate must be a finite number, not nan"),
    ],
)
def test_a_bad_file_is_one_line(mine, connection, source, message):
    if source is not None:
        (mine / connection.partition(":")[0]).write_text(source)
    with pytest.raises(UsageError) as refused:
        make_connection(connection, 4, 2)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_attnres_check(mine, capsys):
    """With the one check that compiles."""
    assert main(["check", "mine.py:MyRule:rate=0.25"]) == 0
    assert capsys.readouterr().out.endswith("mine.py:MyRule:rate=0.25 keeps the protocol\n")


def test_attnres_check_of_what_is_wrong(mine, capsys, monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", [checks.travels, checks.linear])
    assert main(["check", "mine.py:Bent"]) == 1
    out = capsys.readouterr().out
    assert "NO  start, gather and scatter are linear" in out and "gather is not linear at site 0" in out
    mine.joinpath("half.py").write_text("from attnres import Connection\n\nclass Half(Connection):\n    pass\n")
    for wrong_name, message in (
        ("mine.py:Typo", "no subclass of Connection"),
        ("mine.py", "name the connection's class too, as FILE.py:CLASS"),
        ("half.py:Half", "Half defines no weigh and no gather and no scatter"),
    ):
        assert main(["check", wrong_name]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("changed", ["values[0]", "values[0].data", "y", "h"])
def test_a_rule_that_writes_into_what_it_is_given_is_refused(mine, changed):
    """Through `.data` it trained to the end, on gradients that were wrong, silently."""
    steps = f"{changed}.mul_(2)", "return (values[0] + y,)"
    scatter = "\n        ".join(["    def scatter(self, values, weights, site, h, y):", *steps])
    (mine / "writes.py").write_text(f"{SOURCE}\n\nclass Writes(MyRule):\n{scatter}\n")
    message = r"writes\.py:Writes: site 0 changes in place what it was given; make a new tensor"
    with pytest.raises(UsageError, match=message):
        check_rule("writes.py:Writes", 64, 4)


def test_every_run_begins_with_the_check(mine):
    check_rule("block:heads=5", 10, 4)
    with pytest.raises(UsageError, match=r"connection mine\.py:Bent: gather is not linear at site 0"):
        check_rule("mine.py:Bent", 64, 4)
    seven = "class Seven(MyRule):\n    def weigh(self, values, site):\n        return () if site < 8 else ()[site]\n"
    (mine / "seven.py").write_text(f"{SOURCE}\n{seven}")
    check_rule("seven.py:Seven", 64, 7)
    with pytest.raises(UsageError, match=r"seven\.py:Seven fails with IndexError: .*; attnres check says where"):
        check_rule("seven.py:Seven", 64, 8)


def test_a_run_of_a_connection_from_a_file(mine, capsys):
    for number in range(20):
        (mine / f"{number}.txt").write_text(f"{number} fox " * 50)
    shape = ["--model.dim=8", "--model.layers=1", "--model.heads=1", "--model.context=8", "--batch-size=2"]
    text = ["--data.paths=*.txt", "--data.cache=cache", "--data.validation-fraction=0.2", "--validation-tokens=64"]
    train = ["train", *shape, *text, "--steps=2", "--model.connection"]
    assert main([*train, "mine.py:MyRule:rate=0.25"]) == 0
    said = capsys.readouterr().out
    assert "mine.py:MyRule:rate=0.25" in said and "runs/mine.py-MyRule-1x8" in said
    (run,) = (mine / "runs").iterdir()
    (mine / "mine.py").rename(mine / "moved.py")
    with pytest.raises(UsageError, match=rf"{run.name}: .*mine\.py: no such file, seen from"):
        RunFolder(run).config()
    (mine / "moved.py").rename(mine / "mine.py")
    assert main([*train, "mine.py:Bent"]) == 2
    assert "gather is not linear" in capsys.readouterr().err

"""`attnres check`: silent for what is right, a line for each way to be wrong; rules from a file of the user's own."""

from __future__ import annotations

from functools import partial

import pytest

from attnres import UsageError, make_connection
from attnres.cli import main
from attnres.connections import canonical_connection
from attnres.connections import check as checks
from attnres.connections.check import check_rule
from tests.connections import wrong_rules as wrong


@pytest.mark.parametrize("name", ["decay", "block:block_size=3,query=input"])
def test_the_checks_find_nothing_in_what_is_right(name):
    """Random queries of the input choose sharply: rounding turns a choice into another's, at a token or two."""
    make = partial(wrong.Decay, 48) if name == "decay" else partial(make_connection, name, 48)
    assert [found for found in checks.findings(make) if found[1]] == []


@pytest.mark.parametrize(
    ("check", "rule", "message"),
    [
        (checks.travels, wrong.NoTuple, "scatter returns a Tensor; one value is written (value,)"),
        (checks.linear, wrong.Clamped, "gather is not linear at site 0"),
        (checks.apart, wrong.CountsPlaces, "what a token reads depends on its place"),
        (checks.learns, wrong.Forgets, "what sublayer 2 returns does not"),
        (checks.unchanged, wrong.InPlace, "site 0 changes in place what it was given"),
        (checks.pure, wrong.Keeps, "two batches disturb each other"),
        (checks.fused, wrong.Wrong, "the outputs differ"),
        (checks.per_site, wrong.Shared, "uses decay.0, as an earlier one does"),
        (checks.bfloat16, wrong.Rounds, "weigh gives site 0 a weight torch.float32 []"),
        (checks.saved, wrong.Remembers, "it does not"),
    ],
)
def test_what_breaks_the_protocol_is_found(check, rule, message, monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", [check])
    ((_, problem),) = checks.findings(partial(rule, 48))
    assert problem and message in problem and "\n" not in problem


SOURCE = """
import torch
from attnres import Connection

class MyRule(Connection):
    def __init__(self, dim, sublayers, rate=0.5):
        super().__init__(dim, sublayers)
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


def test_attnres_check(mine, capsys):
    assert main(["check", "mine.py:MyRule:rate=0.25"]) == 0
    assert capsys.readouterr().out.endswith("mine.py:MyRule:rate=0.25 keeps the protocol\n")


def test_attnres_check_of_what_is_wrong(mine, capsys, monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", [checks.travels, checks.linear])
    assert main(["check", "mine.py:Bent"]) == 1
    out = capsys.readouterr().out
    assert "NO  start, gather and scatter are linear" in out and "gather is not linear at site 0" in out
    assert main(["check", "mine.py"]) == 2
    assert "name the connection's class too, as FILE.py:CLASS" in capsys.readouterr().err


@pytest.mark.parametrize("changed", ["values[0].data", "h"])
def test_a_rule_that_writes_into_what_it_is_given_is_refused(mine, changed):
    """Through `.data` it trained to the end, on gradients that were wrong, silently."""
    steps = f"{changed}.mul_(2)", "return (values[0] + y,)"
    scatter = "\n        ".join(["    def scatter(self, values, weights, site, h, y):", *steps])
    (mine / "writes.py").write_text(f"{SOURCE}\n\nclass Writes(MyRule):\n{scatter}\n")
    message = r"writes\.py:Writes: site 0 changes in place what it was given; make a new tensor"
    with pytest.raises(UsageError, match=message):
        check_rule("writes.py:Writes", 64, 4)

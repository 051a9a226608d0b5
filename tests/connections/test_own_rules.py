"""The checks of a rule: silent for what is here, a line for each way to be wrong, from a file of one's own too."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import partial

import pytest

from attnres import Connection, UsageError, connection_names, make_connection
from attnres.cli import main
from attnres.connections import canonical_connection, connection_class
from attnres.connections._check import compiled, findings
from attnres.connections._sound import check_apart, check_linear, check_rule, check_unchanged, randomised
from attnres.train.folder import RunFolder
from tests.connections import wrong_rules as wrong


@pytest.mark.parametrize("name", [*connection_names(), "full:query=input", "block:block_size=3,query=input"])
def test_the_checks_find_nothing_in_what_is_here(name, monkeypatch):
    """All but the one that compiles, which the suite has for every variant. Random queries of the input choose sharply:
    rounding turns a choice into another's, at a token or two.
    """
    monkeypatch.setattr("attnres.connections._check.CHECKS", [c for c in _checks() if c is not compiled])
    assert [found for found in findings(lambda sites: make_connection(name, 48, sites)) if found[1]] == []


def _checks():
    from attnres.connections._check import CHECKS

    return CHECKS


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (wrong.NoTuple, "scatter returns a Tensor; one value is written (value,), with its comma"),
        (wrong.NoReadout, "the readout, site 7 of 7 sublayers, fails: IndexError"),
        (wrong.BentGather, "gather is not linear at site 0"),
        (wrong.Clamped, "gather is not linear at site 0"),
        (wrong.Seven, "with 8 it fails: IndexError"),
        (wrong.BentScatter, "scatter is not linear at site 0"),
        (wrong.ReadsTheNext, "what a token reads depends on other tokens of its text, or on other texts"),
        (wrong.ReadsTheOneBefore, "what a token reads depends on other tokens of its text, or on other texts"),
        (wrong.TurnsTheText, "what a token reads depends on other tokens of its text, or on other texts"),
        (wrong.TurnsTheBatch, "what a token reads depends on other tokens of its text, or on other texts"),
        (wrong.ReadsTheBatch, "what a token reads depends on other tokens of its text, or on other texts"),
        (wrong.ReadsTheNextInUse, "what a token reads depends on other tokens of its text, or on other texts"),
        (wrong.CountsPlaces, "what a token reads depends on its place in the text, or on how much text there is"),
        (wrong.BentInUse, "gather is not linear at site 0"),
        (wrong.Double, "decay.0 is torch.float64"),
        (wrong.InPlace, "site 0 changes its values in place"),
        (wrong.Shared, "uses decay.0, as an earlier one does"),
        (wrong.Wide, "it becomes torch.float32; round sums"),
        (wrong.Rounds, "decay.0 moves what site 0 gives 0 times as far as in float32; calculate in float32"),
        (wrong.Coarse, "it is more than 10% off"),
        (wrong.Divides, "scatter gives numbers that are not finite at site 0"),
        (wrong.Wrong, "the outputs differ"),
        (
            wrong.Keeps,
            "two batches disturb each other by the share that it keeps on itself; put what",
        ),
        (wrong.KeepsInUse, "two batches disturb each other by the newest that it keeps on itself"),
        (wrong.Remembers, "it does not"),
        (wrong.Unregistered, "decays is no parameter, and no optimizer finds it; make it an nn.ParameterList"),
        (wrong.Detached, "none reaches decay.0: what computes with it leaves autograd or is unused"),
        (wrong.AsNumber, "none reaches decay.0: what computes with it leaves autograd or is unused"),
        (wrong.Forgets, "what sublayer 2 returns does not"),
        (wrong.Leaves, "SystemExit: 3"),
        (Connection, "NotImplementedError"),
    ],
)
def test_what_breaks_the_protocol_is_found(rule, message, monkeypatch):
    monkeypatch.setattr("attnres.connections._check.CHECKS", [c for c in _checks() if c is not compiled])
    problems = [problem for _, problem in findings(partial(rule, 48)) if problem]
    assert any(message in problem for problem in problems), problems
    assert not any("\n" in problem for problem in problems)
    assert not [problem for _, problem in findings(partial(wrong.Decay, 48)) if problem]


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


@pytest.mark.parametrize("rate", [-0.5, 0, 1e300])
def test_the_range_of_an_own_option_is_the_class_s_own(mine, rate):
    name = canonical_connection(f"mine.py:MyRule:rate={rate}")
    assert make_connection(name, 4, 2).rate == rate


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
        ("any.py:A:rate=2", CLASS.replace("rate", "**others") + "super().__init__(dim, sites)", "it takes no options"),
        (
            "any.py:A:others=2",
            CLASS.replace("rate", "**others") + "super().__init__(dim, sites)",
            "it takes no options",
        ),
        ("mine.py:MyRule:rate=NaN", None, "rate must be a finite number, not nan"),
        ("mine.py:MyRule:rate=-1e400", None, "rate must be a finite number, not -inf"),
        ("fails.py:A", "import nowhere_to_be_found", "fails.py fails with ModuleNotFoundError: No module named"),
        ("typo.py:A", "class A(", "typo.py, line 1: '(' was never closed; mend"),
        ("exits.py:A", "1 / 0", "fails with ZeroDivisionError: division by zero; mend it"),
        ("empty.py:A", "", "it defines none"),
        ("nulls.py:A", "\0", "nulls.py: source code string cannot contain null bytes; mend"),
        ("leaves.py:A", "import sys; sys.exit('no more')", "leaves.py fails with SystemExit: no more; mend it"),
        (
            "wants.py:A",
            CLASS + "super().__init__(dim, sites)",
            "wants.py:A cannot be made: TypeError: A.__init__()",
        ),
        (
            "quits.py:A:rate=1",
            CLASS + "raise SystemExit(3)",
            "quits.py:A cannot be made: SystemExit: 3; it is called with",
        ),
        ("wants.py:A:rate=1", CLASS + "self.part = nn.Linear(1, 1)", "cannot be made: AttributeError: cannot assign"),
    ],
)
def test_a_bad_file_is_one_line(mine, connection, source, message):
    if source is not None:
        (mine / connection.partition(":")[0]).write_text(source)
    with pytest.raises(UsageError) as refused:
        make_connection(connection, 4, 2)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_connection_of_the_folder_that_cannot_be_imported(tmp_path, monkeypatch):
    import attnres.connections

    (tmp_path / "broken.py").write_text("import nowhere_to_be_found")
    monkeypatch.setattr(attnres.connections, "__path__", [*attnres.connections.__path__, str(tmp_path)])
    with pytest.raises(UsageError, match=r"broken fails with ModuleNotFoundError: No module named .*; mend it"):
        make_connection("broken", 4, 2)


def test_a_fault_of_a_connection_of_the_folder_is_not_told_as_the_user_s(monkeypatch):
    monkeypatch.setattr(connection_class("residual"), "__init__", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_connection("residual", 4, 2)


def test_attnres_check(mine, capsys):
    assert main(["check", "mine.py:MyRule:rate=0.25"]) == 0
    assert capsys.readouterr().out.endswith("mine.py:MyRule:rate=0.25 keeps the protocol\n")
    assert main(["check", "mine.py:Bent"]) == 1
    out = capsys.readouterr().out
    assert "NO  start, gather and scatter are linear" in out and "gather is not linear at site 0" in out
    assert main(["check", "mine.py:Typo"]) == 2
    assert main(["check", "mine.py"]) == 2
    assert capsys.readouterr().err.endswith("mine.py: name the connection's class too, as FILE.py:CLASS\n")
    mine.joinpath("half.py").write_text("from attnres import Connection\n\nclass Half(Connection):\n    pass\n")
    assert main(["check", "half.py:Half"]) == 2
    assert (
        capsys.readouterr().err == "attnres: Half defines no weigh and no gather and no scatter; see CONTRIBUTING.md\n"
    )


def test_verdicts_are_all_that_attnres_check_says(mine, capsys):
    """Of torch's compiler, too: its logs have a traceback for wrong shapes, its errors an explanation below."""
    rule = """
        from attnres.connections.residual import Residual

        class Shapes(Residual):
            def gather(self, values, weights, site):
                return values[0] @ values[0].new_ones(5, 5)

        class Untraced(Residual):
            def weigh(self, values, site):
                return [] if object.__subclasses__() else ()
    """
    mine.joinpath("wrong.py").write_text(textwrap.dedent(rule))
    command = [sys.executable, "-m", "attnres", "check", "wrong.py:Shapes"]  # torch's logs leave a process past pytest
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and not done.stderr, done.stderr
    assert all(line.startswith(("ok  ", "NO  ")) for line in lines[:-1]) and "something wrong" in lines[-1]
    assert "takes it as one graph" in lines[-2] and "mat1 and mat2 shapes" in lines[-2]
    faults = [line.partition(": ")[2] for line in lines[:-1]]
    assert "as above" in faults and len([said for said in faults if "2x48 and 5x5" in said]) == 2  # each told once
    assert main(["check", "wrong.py:Untraced"]) == 1
    assert "changes nothing: Dynamo does not know how to trace" in capsys.readouterr().out


@pytest.mark.parametrize("name", connection_names())
def test_what_is_here_writes_into_nothing_that_it_is_given(name):
    check_unchanged(randomised(make_connection(name, 48, 7)))


@pytest.mark.parametrize("changed", ["values[0]", "values[0].data", "y", "h"])
def test_a_rule_that_writes_into_what_it_is_given_is_refused(mine, changed):
    """Through `.data` it trained to the end, on gradients that were wrong, without a word."""
    steps = f"{changed}.mul_(2)", "return (values[0] + y,)"
    scatter = "\n        ".join(["    def scatter(self, values, weights, site, h, y):", *steps])
    (mine / "writes.py").write_text(f"{SOURCE}\n\nclass Writes(MyRule):\n{scatter}\n")
    message = r"writes\.py:Writes: site 0 changes in place what it was given; make a new tensor"
    with pytest.raises(UsageError, match=message):
        check_rule("writes.py:Writes", 64, 4)


def test_every_run_begins_with_the_check(mine):
    check_rule("block:heads=5", 10, 4)
    check_linear(randomised(make_connection("full", 8, 3)))
    with pytest.raises(UsageError, match=r"connection mine\.py:Bent: gather is not linear at site 0"):
        check_rule("mine.py:Bent", 64, 4)
    leaves = "class Leaves(MyRule):\n    def weigh(self, values, site):\n        raise SystemExit(3)\n"
    (mine / "leaves.py").write_text(f"{SOURCE}\n{leaves}")
    with pytest.raises(UsageError, match=r"leaves\.py:Leaves fails with SystemExit: 3; attnres check says where"):
        check_rule("leaves.py:Leaves", 64, 4)
    seven = "class Seven(MyRule):\n    def weigh(self, values, site):\n        return () if site < 8 else ()[site]\n"
    (mine / "seven.py").write_text(f"{SOURCE}\n{seven}")
    check_rule("seven.py:Seven", 64, 7)
    with pytest.raises(UsageError, match=r"seven\.py:Seven fails with IndexError: .*; attnres check says where"):
        check_rule("seven.py:Seven", 64, 8)


def test_a_run_of_a_connection_from_a_file(mine):
    for number in range(20):
        (mine / f"{number}.txt").write_text(f"{number} fox " * 50)
    shape = ["--model.dim=8", "--model.layers=1", "--model.heads=1", "--model.context=8", "--batch-size=2"]
    text = ["--data.paths=*.txt", "--data.cache=cache", "--data.validation-fraction=0.2", "--validation-tokens=64"]

    def train(connection):
        command = [sys.executable, "-m", "attnres", "train", *shape, *text, "--steps=2", "--model.connection"]
        return subprocess.run([*command, connection], capture_output=True, text=True)

    done = train("mine.py:MyRule:rate=0.25")
    assert done.returncode == 0, done.stderr
    assert "connection: mine.py:MyRule:rate=0.25" in done.stdout and "folder: runs/mine.py-MyRule-1x8" in done.stdout
    (run,) = (mine / "runs").iterdir()
    (mine / "mine.py").rename(mine / "moved.py")
    with pytest.raises(UsageError, match=rf"{run.name}: .*mine\.py: no such file, seen from"):
        RunFolder(run).config()
    (mine / "moved.py").rename(mine / "mine.py")
    refused = train("mine.py:Bent")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr
    assert "gather is not linear" in refused.stderr

"""The checks of a rule: silent for what is here, a line for each way to be wrong, from a file of one's own too."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from attnres import Connection, UsageError, connection_names, make_connection
from attnres.cli import main
from attnres.connections import canonical_connection, connection_class
from attnres.connections._check import check_apart, check_linear, check_rule, compiled, findings, randomised
from attnres.train.folder import RunFolder

every_connection = pytest.mark.parametrize("name", connection_names())


@every_connection
def test_the_checks_find_nothing_in_what_is_here(name, monkeypatch):
    """All but the one that compiles, which the suite has for every variant."""
    monkeypatch.setattr("attnres.connections._check.CHECKS", [c for c in _checks() if c is not compiled])
    assert [found for found in findings(lambda: make_connection(name, 48, 7)) if found[1]] == []


def _checks():
    from attnres.connections._check import CHECKS

    return CHECKS


class Decay(Connection):
    """A rule that is right; those below break it in one place each."""

    def __init__(self, dim, sites):
        super().__init__(dim, sites)
        self.decay = nn.ParameterList(torch.ones(1) for _ in range(sites))

    def weigh(self, values, site):
        return self.decay[site] if site < self.sites else ()

    def gather(self, values, weights, site):
        return values[0]

    def scatter(self, values, weights, site, h, y):
        return ((weights * values[0] + y).to(values[0].dtype),)


class BentGather(Decay):
    def gather(self, values, weights, site):
        return torch.tanh(values[0])


class BentScatter(Decay):
    def scatter(self, values, weights, site, h, y):
        return (weights * values[0] + y.relu(),)


class ReadsTheNext(Decay):
    def weigh(self, values, site):
        return 1 + torch.tanh(torch.roll(values[0], -1, -2)) if site < self.sites and values[0].dim() > 1 else 1


class ReadsTheOneBefore(Decay):
    def weigh(self, values, site):
        return 1 + torch.tanh(torch.roll(values[0], 1, -2)) if site < self.sites and values[0].dim() > 1 else 1


class ReadsTheBatch(Decay):
    def weigh(self, values, site):
        return 1 + torch.tanh(values[0].mean(0)) if site < self.sites and values[0].dim() > 1 else 1


class Drops(Decay):
    """Stochastic depth: at random, and each token for itself."""

    def weigh(self, values, site):
        keeps = torch.rand(values[0].shape[:-1])[..., None] < 0.5
        return self.decay[site] * keeps if site < self.sites else ()


class CountsPlaces(Decay):
    def weigh(self, values, site):
        places = torch.arange(values[0].shape[-2] if values[0].dim() > 1 else 1)
        return (self.decay[site] / (1 + places))[:, None] if site < self.sites else ()


class ReadsTheNextInUse(Decay):
    def gather(self, values, weights, site):
        follows = not self.training and values[0].dim() > 1
        return values[0] + torch.roll(values[0], -1, -2) if follows else values[0]


class BentInUse(Decay):
    def gather(self, values, weights, site):
        return values[0] if self.training else torch.tanh(values[0])


class Double(Decay):
    def __init__(self, dim, sites):
        super().__init__(dim, sites)
        self.double()


class InPlace(Decay):
    def scatter(self, values, weights, site, h, y):
        values[0].detach().add_(y.detach())
        return (values[0] + 0,)


class Shared(Decay):
    def weigh(self, values, site):
        return self.decay[0]


class Wide(Decay):
    def scatter(self, values, weights, site, h, y):
        return (weights * values[0] + y,)


class Keeps(Decay):
    """What its own site's `scatter` needs, on the module: right as long as nothing comes between."""

    def weigh(self, values, site):
        self.share = values[0].mean(-1, keepdim=True).sigmoid()
        return ()

    def scatter(self, values, weights, site, h, y):
        return (values[0] + self.share * y,)


class KeepsInUse(Decay):
    def weigh(self, values, site):
        return 1 + getattr(self, "newest", torch.zeros(())).mean()

    def scatter(self, values, weights, site, h, y):
        if not self.training:
            self.newest = y
        return (values[0] + weights * y,)


class Remembers(Decay):
    def __init__(self, dim, sites):
        super().__init__(dim, sites)
        self.seen = {}

    def weigh(self, values, site):
        return self.seen.setdefault(site, self.decay[site].detach().clone()) if site < self.sites else ()


class Unregistered(Decay):
    def __init__(self, dim, sites):
        super().__init__(dim, sites)
        self.decay = None
        self.decays = [torch.ones(1, requires_grad=True) for _ in range(sites)]

    def weigh(self, values, site):
        return self.decays[site] if site < self.sites else ()


class Detached(Decay):
    def weigh(self, values, site):
        return self.decay[site].detach() if site < self.sites else ()


class AsNumber(Decay):
    def weigh(self, values, site):
        return torch.tensor(self.decay[site].item()) if site < self.sites else ()


class Forgets(Decay):
    def scatter(self, values, weights, site, h, y):
        return ((weights * values[0] + (y if site != 2 else 0 * y)).to(values[0].dtype),)


class Leaves(Decay):
    def weigh(self, values, site):
        raise SystemExit(3)


class Wrong(Decay):
    def mix(self, values, site):
        return super().mix(values, site)[0], 2 * values[0]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (BentGather, "gather is not linear at site 0"),
        (BentScatter, "scatter is not linear at site 0"),
        (ReadsTheNext, "what a token reads depends on other tokens of its text, or on other texts"),
        (ReadsTheOneBefore, "what a token reads depends on other tokens of its text, or on other texts"),
        (ReadsTheBatch, "what a token reads depends on other tokens of its text, or on other texts"),
        (ReadsTheNextInUse, "what a token reads depends on other tokens of its text, or on other texts"),
        (CountsPlaces, "what a token reads depends on its place in the text, or on how much text there is"),
        (BentInUse, "gather is not linear at site 0"),
        (Double, "decay.0 is torch.float64"),
        (InPlace, "site 0 changes its values in place"),
        (Shared, "uses decay.0, as an earlier one does"),
        (Wide, "it becomes torch.float32; round sums"),
        (Wrong, "the outputs differ"),
        (Keeps, "two batches disturb each other by the share that it keeps on itself; put what depth carries into"),
        (KeepsInUse, "two batches disturb each other by the newest that it keeps on itself"),
        (Remembers, "it does not"),
        (Unregistered, "decays is no parameter, and no optimizer finds it; make it an nn.ParameterList"),
        (Detached, "none reaches decay.0: what computes with it leaves autograd or is unused"),
        (AsNumber, "none reaches decay.0: what computes with it leaves autograd or is unused"),
        (Forgets, "what sublayer 2 returns does not"),
        (Leaves, "SystemExit: 3"),
        (Connection, "NotImplementedError"),
    ],
)
def test_what_breaks_the_protocol_is_found(rule, message, monkeypatch):
    monkeypatch.setattr("attnres.connections._check.CHECKS", [c for c in _checks() if c is not compiled])
    problems = [problem for _, problem in findings(lambda: rule(48, 7)) if problem]
    assert any(message in problem for problem in problems), problems
    assert not any("\n" in problem for problem in problems)
    assert not [problem for _, problem in findings(lambda: Decay(48, 7)) if problem]


def test_a_rule_that_draws_at_random_keeps_tokens_apart():
    check_apart(randomised(lambda: Drops(48, 7)))


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
    assert main(["check", "wrong.py:Untraced"]) == 1
    assert "changes nothing: Dynamo does not know how to trace" in capsys.readouterr().out


def test_every_run_begins_with_the_check(mine):
    check_rule("block:heads=5", 10)
    check_linear(randomised(lambda: make_connection("full", 8, 3)))
    with pytest.raises(UsageError, match=r"connection mine\.py:Bent: gather is not linear at site 0"):
        check_rule("mine.py:Bent", 64)
    leaves = "class Leaves(MyRule):\n    def weigh(self, values, site):\n        raise SystemExit(3)\n"
    (mine / "leaves.py").write_text(f"{SOURCE}\n{leaves}")
    with pytest.raises(UsageError, match=r"leaves\.py:Leaves fails with SystemExit: 3; attnres check says where"):
        check_rule("leaves.py:Leaves", 64)


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

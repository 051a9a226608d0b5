"""What a rule or its sublayers can do wrong is one line, and so is a file that holds no good rule."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from attnres import Connection, UsageError, connection_names, make_connection, mixing_matrix
from attnres.cli import main
from attnres.connections import canonical_connection, check_sublayers, connection_class, option_defaults
from attnres.connections._check import check_linear, check_rule, compiled, findings, randomised
from tests.depth import DIM, SITES, make_sublayers

every_connection = pytest.mark.parametrize("name", connection_names())


@every_connection
def test_sublayers_that_work_in_place_are_refused(name):
    """Values of `residual` are what the sublayer reads: it and the caller's embedding would change."""
    connection, x = make_connection(name, DIM, SITES), torch.randn(2, DIM)
    sublayers = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(DIM, DIM)) for _ in range(SITES)]
    with pytest.raises(UsageError, match="a sublayer changed its input in place"):
        connection.run(connection.start(x), sublayers)
    with torch.inference_mode():
        connection.run(connection.start(torch.randn(2, DIM)), make_sublayers())


@every_connection
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("buffers", [1, 2])
def test_one_buffer_for_the_outputs_of_all_calls_is_refused_where_it_matters(name, mode, buffers):
    """A rule that sums outputs up has no use for the buffer any more; one that keeps them would read the newest."""
    connection, x = make_connection(name, DIM, SITES), torch.randn(2, DIM)
    kept = [torch.zeros(2, DIM) for _ in range(buffers)]
    sublayers = [lambda h, *_, buffer=kept[k % buffers]: torch.mul(h, 2, out=buffer)[:] for k in range(SITES)]

    def read(sublayers, step):
        values = connection.start(x)
        for site in range(0, SITES, step):
            values = connection.run(values, sublayers[site : site + step], site)
        return connection.readout(values)

    with mode():
        right = read([lambda h, *_: 2 * h] * SITES, SITES)
        for step in (SITES, 1):
            refused = None
            try:
                torch.testing.assert_close(read(sublayers, step), right, rtol=1e-4, atol=1e-4)
            except UsageError as error:
                refused = str(error)
            keeps = name in ("delta", "full", "window")
            assert refused or not keeps
            assert refused is None or "a sublayer wrote into what an earlier one returned" in refused


def test_the_same_output_at_every_call_is_no_overwritten_one():
    zero, x = torch.zeros(2, DIM), torch.randn(2, DIM)
    for name in ("full", "delta", "residual"):
        connection = make_connection(name, DIM, SITES)
        connection.run(connection.start(x), [lambda h: zero] * (SITES - 2) + [lambda h: h] * 2)


@every_connection
def test_what_is_no_stream_no_sublayer_and_no_site(name):
    connection, x = make_connection(name, DIM, SITES), torch.randn(2, DIM)
    for wrong in (None, [1.0], connection.start(x), torch.tensor(1.0)):
        with pytest.raises(UsageError, match=r"starts with the embedding, a tensor \[..., dim\], not with a"):
            connection.start(wrong)
    for wrong in (x.long(), x.to(torch.complex64), x.bool()):
        with pytest.raises(UsageError, match="must be of a floating dtype, not torch"):
            connection.start(wrong)
    for wrong in (None, "attention", torch.ones(2)):
        with pytest.raises(UsageError, match="a sublayer must be a function of h, or a module, not "):
            connection.run(connection.start(x), [*make_sublayers(sites=1), wrong])
    for wrong in (None, torch.tanh):
        with pytest.raises(UsageError, match="sublayers must be a list of them, not one"):
            connection.run(connection.start(x), wrong)
    for wrong in (-1, 1.0, None):
        with pytest.raises(UsageError, match=f"first must be the site of the first sublayer, 0 to {SITES}, not "):
            connection.run(connection.start(x), [], first=wrong)
    with pytest.raises(UsageError, match=r"is not called: connection.readout\(connection.run\("):
        connection(x)


@every_connection
def test_values_that_are_none(name):
    connection, sublayers = make_connection(name, DIM, SITES), make_sublayers()
    with pytest.raises(UsageError, match=r"values are what start\(x\) returns, not x"):
        connection.run(torch.randn(2, DIM), sublayers)
    with pytest.raises(UsageError, match=f"has width {DIM}; what it was given has 5"):
        connection.run(connection.start(torch.randn(2, 5)), sublayers)


@every_connection
def test_what_most_sums_would_take_without_a_word(name):
    """A sum broadcasts one token's output to all, and one number to all channels; the first row of x is no stream."""
    connection, x = make_connection(name, DIM, SITES), torch.randn(2, 3, DIM)
    for wrong in (lambda h: h[:, -1:] * 2, lambda h: h.mean(-1, keepdim=True), lambda h: h[..., :1, :]):
        with pytest.raises(UsageError, match=rf"must return the shape that it reads, \[2, 3, {DIM}\], and returned"):
            connection.run(connection.start(x), [wrong] * SITES)
    with pytest.raises(UsageError, match=r"values are what start\(x\) returns, not x"):
        connection.readout(x)
    with pytest.raises(UsageError, match=r"must be of a floating dtype, not torch.int64"):
        connection.run(connection.start(torch.ones(2, DIM, dtype=torch.int64)), make_sublayers())
    with pytest.raises(UsageError, match=f"has width {DIM}; what it was given has 3"):
        mixing_matrix(connection, torch.randn(2, 3), make_sublayers())
    with pytest.raises(UsageError, match="a list of them, not one Linear"):
        connection.run(connection.start(x), nn.Linear(DIM, DIM))


def test_the_state_of_another_rule_is_refused():
    block, full = (make_connection(name, DIM, SITES) for name in ("block", "full"))
    with pytest.raises(UsageError, match="the state is that of Block, and this connection is Full"):
        full.load_state_dict(block.state_dict())
    with pytest.raises(UsageError, match="the state is that of block_size=4, and this connection is block_size=2"):
        nn.ModuleList([make_connection("block:block_size=2", DIM, SITES)]).load_state_dict(
            nn.ModuleList([block]).state_dict()
        )
    full.load_state_dict(make_connection("delta", DIM, SITES).state_dict(), strict=False)  # torch says what is missing
    full.load_state_dict(dict(block.state_dict()), strict=True)  # plain tensors do not say whose they are


def test_repr_says_every_option():
    text = repr(make_connection("block:query=input,eps=0.5,weighting=sigmoid", DIM, SITES))
    for part in ("block_size=4", "query=input", "mixing=keys", "eps=0.5", "weighting=sigmoid", "value_norm=False"):
        assert part in text


@every_connection
def test_no_option_is_left_out_of_what_a_state_is_signed_with(name):
    connection = make_connection(name, DIM, SITES)
    for of in (connection, copy.deepcopy(connection), pickle.loads(pickle.dumps(connection))):
        said = of.extra_repr().split(", ")
        options = option_defaults(type(connection))
        assert sorted(said) == sorted(f"{k}={v}" for k, v in {"dim": DIM, "sites": SITES, **options}.items())


def test_a_state_made_with_another_option_is_refused():
    """By rules that say nothing of their options, too, and whatever leaves the names of parameters as they are."""
    for name, other in (("delta", "delta:block_size=3"), ("hc", "hc:eps=0.5"), ("rms-residual", "rms-residual:eps=1")):
        state = make_connection(other, DIM, SITES).state_dict()
        with pytest.raises(UsageError, match=f"state is that of {other.partition(':')[2]}"):
            make_connection(name, DIM, SITES).load_state_dict(state)
    with pytest.raises(UsageError, match=r"is that of rate=0\.5, and this connection is rate=2\.0; make the"):
        Rated(DIM, SITES, 2.0).load_state_dict(Rated(DIM, SITES, rate=0.5).state_dict())
    Rated(DIM, SITES, map=torch.tanh).load_state_dict(Rated(DIM, SITES, map=lambda x: x).state_dict())


def test_a_state_from_before_an_option_was_signed_loads():
    connection = make_connection("delta", DIM, SITES)
    state = connection.state_dict()
    state._metadata[""]["connection"] = f"Delta(dim={DIM}, sites={SITES})"
    make_connection("delta:block_size=3", DIM, SITES).load_state_dict(state)


def test_a_sublayer_with_a_residual_of_its_own():
    def plain(h):
        return torch.tanh(nn.functional.rms_norm(h, (DIM,)))

    x = torch.randn(4, DIM)
    check_sublayers([plain, torch.nn.Linear(DIM, DIM), torch.zeros_like], x)
    with pytest.raises(UsageError, match="sublayer 1 adds its input to its output"):
        check_sublayers([plain, lambda h: h + plain(h)], x)


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


class Rated(Decay):
    def __init__(self, dim, sites, rate=1.0, map=torch.sigmoid):
        super().__init__(dim, sites)
        self.rate, self.map = rate, map


class BentGather(Decay):
    def gather(self, values, weights, site):
        return torch.tanh(values[0])


class BentScatter(Decay):
    def scatter(self, values, weights, site, h, y):
        return (weights * values[0] + y.relu(),)


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
    refused = train("mine.py:Bent")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr
    assert "gather is not linear" in refused.stderr

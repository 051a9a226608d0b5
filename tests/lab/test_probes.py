"""Probes: the questions by hand, the answers of a model by hand, and the command."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnres import Transformer, TransformerConfig
from attnres.cli import main
from attnres.errors import UsageError
from attnres.lab.experiments.probes import Options, claims, plan, runs_inside, tables
from attnres.lab.runs import read_record
from attnres.lab.tasks import Task, closes, commonest, indents, recalls, shares_right, tasks
from tests.lab.conftest import ARMS
from tests.lab.sample import record as record_from


def places(text: str, marks: str) -> list[int]:
    """Where the second line has a mark under the first one."""
    assert len(text) == len(marks)
    return [at for at, mark in enumerate(marks) if mark == "^"]


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("f(a[1], {2: b})", "     ^       ^^"),
        (") f(x)", "     ^"),
        ("f(']', x) (y)", "            ^"),  # in the string nothing tells what is open, and what was is forgotten
        ("((]))", "     "),
        ("f(", "  "),
    ],
)
def test_brackets_that_close_what_is_open(text, marks):
    assert closes(text.encode()) == places(text, marks)


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("  a\n    b c\nd\n", "    ^^^^^   ^ "),  # of the first line it is not known where it began
        ("a\n\n  \nb", "   ^^ ^"),
        ("a  b", "    "),
    ],
)
def test_indentation_goes_on_or_ends(text, marks):
    assert indents(text.encode()) == places(text, marks)


def test_names_that_were_long_ago():
    text = "value = other + ab # ....  other + value"
    marks = "                             ^^^     ^^^"
    assert recalls(text.encode()) == [at for at in places(text, marks) if at >= 35], "other was 19 before, not 20"
    assert recalls(b"value = value + 1 + 2") == [], "a name just said is no memory"


def test_every_task_asks_at_the_place_before_the_answer():
    window = np.frombuffer(b"x = [1]\n  y = 2\n" + b"a" * 17, dtype=np.uint8).astype(np.int64)[None]
    by_name = {task.name: task for task in tasks(window)}
    assert by_name["next byte"].asked.all()
    (at,) = np.flatnonzero(by_name["brackets"].asked[0])
    assert chr(window[0, at + 1]) == "]"
    asked = window[0, 1:][by_name["indentation"].asked[0]]
    assert bytes(asked.tolist()) == b"  ya"
    for name in ("copying", "induction"):
        windows, half = by_name[name].windows, window.shape[1] // 2
        assert (windows[:, :half] == windows[:, half:]).all()
        assert np.flatnonzero(by_name[name].asked[0]).tolist() == list(range(half + 1, 2 * half - 1))
    assert (by_name["copying"].windows[:, :16] == window[:, :16]).all()
    assert set(bytes(by_name["induction"].windows[0].tolist())) <= set(b"abcdefghijklmnopqrstuvwxyz")


class Says(nn.Module):
    """A model that knows the probabilities of the next byte whatever came before."""

    def __init__(self, **probabilities: float) -> None:
        super().__init__()
        self.logits = torch.full((256,), -30.0)
        for byte, probability in probabilities.items():
            self.logits[ord(byte)] = torch.tensor(probability).log()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits.expand(*tokens.shape, 256)


def test_answers_are_of_classes_and_each_place_counts_once():
    windows = np.frombuffer(b"abac" * 20 + b"a", dtype=np.uint8).astype(np.int64).reshape(27, 3)
    everywhere, each, targets = np.ones((27, 2), bool), np.arange(256), windows[:, 1:]
    together, choice = np.where(np.isin(each, [ord("b"), ord("c")]), 0, 1), np.full(256, -1)
    choice[[ord("b"), ord("c")]] = 0, 1
    a, c = targets == ord("a"), targets == ord("c")
    asked = [
        Task("each", "", windows, everywhere, each),
        Task("b and c are one answer", "", windows, everywhere, together),
        Task("a is no answer", "", windows, ~a, choice),
        Task("other windows", "", windows[:5], everywhere[:5], each),
    ]
    model = Says(a=0.4, b=0.29, c=0.31)
    shares = shares_right(model, asked)  # type: ignore[arg-type]
    assert shares == (a.mean(), 1 - a.mean(), c.sum() / (~a).sum(), a[:5].mean())
    assert commonest(asked[2]) == pytest.approx(max(shares[2], 1 - shares[2]))


def test_claims_are_on_paired_shares():
    runs = [
        {
            "arm": arm,
            "seed": seed,
            "status": "done",
            "loss": 2.0,
            "measured": {"right": [0.5 + 0.1 * seed + gain + 0.001 * seed * k]},
        }
        for k, (arm, gain) in enumerate((("residual", 0.0), ("block", 0.05), ("x0", 0.0005)))
        for seed in range(3)
    ]
    asked = {"name": "copying", "what": "text", "places": 7, "commonest": 0.25}
    record = record_from("probes", runs, None, tasks=[asked], tokens=64)
    block, x0 = claims(record)
    assert (block.reading, x0.reading) == ("shown", "refuted") and block.value == pytest.approx(0.051)
    assert tables(record)[0].rows[0] == ("(commonest answer)", "", "0.2500", "")


def test_a_signal_while_the_page_is_drawn_does_not_say_that_nothing_was_saved(sweep, tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("attnres.lab.page.write_results", interrupted)
    arguments = ["probe", "--runs", str(sweep.folder), "--tokens", "64", "--out", str(tmp_path / "out")]
    assert main(arguments) == 130
    record = tmp_path / "out" / "probes.json"
    assert f"measured in {record}" in capsys.readouterr().err
    assert read_record(record, "probes").runs


def test_from_runs_to_record_tables_and_page(sweep, tmp_path, capsys, quick_figures, monkeypatch):
    assert main(["probe", "--runs", str(sweep.folder), "--tokens", "256", "--out", str(tmp_path)]) == 0
    record = read_record(tmp_path / "probes.json", "probes")
    assert {run.arm for run in record.runs} == set(ARMS) and record.found["tokens"] == 256
    assert all(0 <= share <= 1 for run in record.runs for share in run.measured["right"])
    assert "What runs get right" in capsys.readouterr().out
    assert (tmp_path / "figures" / "probes.png").exists()
    fewer = ["probe", str(sweep.planned[0].folder), "--tokens", "256", "--out", str(tmp_path)]
    monkeypatch.setattr("attnres.lab.tasks.shares_right", lambda *_: pytest.fail("it was asked again"))
    assert main(fewer) == 0 and set(read_record(tmp_path / "probes.json", "probes").runs) == set(record.runs)
    assert main([*fewer, "--tokens", "128"]) == 2 and "another tokens" in capsys.readouterr().err


def test_a_vocabulary_may_have_room_for_more_than_bytes():
    """Its further ids are no answer, however likely."""
    config = TransformerConfig(dim=16, heads=1, layers=1, context=64, vocab_size=300)
    torch.manual_seed(0)
    model = Transformer(config).eval()
    with torch.no_grad():
        model.head.weight[256:] += 10 * model.head.weight[:44]
    text = np.random.default_rng(0).integers(32, 127, (4, 65))
    asked = [task for task in tasks(text) if task.asked.any()]
    assert all(0 <= share <= 1 for share in shares_right(model, asked))


def test_runs_that_do_not_compare_are_refused_by_name(sweep, tmp_path):
    """Of another configuration, or begun with another run where the first was not; all begun so may."""
    begun = []
    for number, planned in enumerate(sweep.planned[:2]):
        begun.append(tmp_path / f"begun-{number}")
        shutil.copytree(planned.folder, begun[-1])
        edit(begun[-1], start_from=str(planned.folder))
    one, other = sweep.planned[0].folder, tmp_path / "other"
    shutil.copytree(sweep.planned[1].folder, other)
    assert (
        len(plan(Options(folders=(one, other)), tmp_path).runs) == len(plan(Options(tuple(begun)), tmp_path).runs) == 2
    )
    with pytest.raises(UsageError, match=r"different configurations \(start_from\)"):
        plan(Options(folders=(one, begun[1])), tmp_path)
    edit(other, steps=7)
    with pytest.raises(UsageError, match=r"different configurations \(steps\)"):
        plan(Options(folders=(one, other)), tmp_path)
    shutil.copytree(one, tmp_path / "again")
    with pytest.raises(UsageError, match="both residual, seed 0"):
        plan(Options(folders=(one, tmp_path / "again")), tmp_path)
    with pytest.raises(UsageError, match="no run there"):
        plan(Options(runs=tmp_path / "none"), tmp_path)


def edit(folder, **changes) -> None:
    record = json.loads((folder / "config.json").read_text())
    record["config"] |= changes
    (folder / "config.json").write_text(json.dumps(record))


def test_runs_are_found_at_any_depth_once_and_without_their_earlier_ends(sweep, tmp_path):
    run = tmp_path / "checkpoints" / "block" / "seed-0"
    shutil.copytree(sweep.planned[0].folder, run)
    shutil.copytree(sweep.planned[0].folder, run / "steps-3")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert runs_inside(tmp_path) == runs_inside(run) == [run]
    assert [one.folder for one in plan(Options((run,), runs=tmp_path), tmp_path).runs] == [run]


def test_a_run_that_is_not_finished_is_named_and_left_out(sweep, tmp_path, capsys, quick_figures):
    for planned in sweep.planned[:2]:
        shutil.copytree(planned.folder, tmp_path / planned.arm)
    (tmp_path / sweep.planned[1].arm / "summary.json").unlink()
    assert main(["probe", str(tmp_path), "--tokens", "64", "--out", str(tmp_path / "out")]) == 0
    assert "(unfinished)" in capsys.readouterr().out
    record = read_record(tmp_path / "out" / "probes.json", "probes")
    assert [run.status for run in record.runs] == ["done", "unfinished"]

"""The parts of `attnres bench`, on sizes too small to mean anything."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch

from attnres.analysis.cost import counted_transfers
from attnres.bench import curves, decode, imports, lab, measure, memory, operator, parallel, step, targets
from attnres.bench.measure import Row, Setting
from attnres.errors import UsageError

SETTING = Setting(rounds=1, quick=True)


def test_how_ratios_are_written():
    written = [
        Row("", "", must, "", ratio).measured for must, ratio in [("20x", 2.5), ("1.06", 1.0512), ("2%", 0.0123)]
    ]
    assert written == ["2.50x", "1.05", "1.2%"]
    assert Row("", "", "2%", "").measured == measure.NOT_MEASURED


def test_curves_name_their_axis():
    rows = curves.measure(SETTING)
    assert {row.details["axis"] for row in rows} == {"sources", "time", "dim"}
    for row in rows:
        assert row.details[row.details["axis"]] > 0 and "attnres, ms" in row.details


def test_steps_of_every_connection():
    rows = step.measure(SETTING)
    assert [row.what.split(" over ")[0] for row in rows] == [f"training step, {what}" for what in step.WHAT.values()]
    for row in (*rows, *decode.measure(SETTING)):
        assert row.ratio is not None and row.ratio > 0


def test_every_target_takes_its_turn(monkeypatch):
    monkeypatch.setattr(targets.cpu, "load", lambda: True)
    monkeypatch.setattr(targets.cpu, "runnable", lambda: ["x86-64-v4", "x86-64-v3"])
    times = {"native": (1.0, 2.0), "x86-64-v4": (1.0, 2.0), "x86-64-v3": (1.5, 2.4)}
    order = []

    def in_a_process(target, dtype, rounds, quick):
        order.append((target, dtype))
        return tuple(time * (2 if dtype == "bfloat16" else 1) for time in times[target])

    monkeypatch.setattr(targets, "_in_a_process", in_a_process)
    rows = {row.what: row for row in targets.measure(SETTING)}
    assert len(order) == 6 and len(rows) == 14
    v3 = rows[f"operator backward, {operator.QUICK}, float32: x86-64-v3 over native"]
    assert v3.ratio == pytest.approx(1.2) and v3.must == "1.6"
    assert rows[f"operator forward, {operator.QUICK}, x86-64-v3: bfloat16 over float32"].ratio == pytest.approx(2)


def test_a_target_is_measured_on_its_own_kernel(in_this_process, kernel):
    forward, backward = targets._in_a_process("x86-64-v3", "bfloat16", 1, quick=True)
    assert forward > 0 and backward > 0
    assert in_this_process[0]["ATTNRES_MARCH"] == "x86-64-v3"


def test_memory_is_measured_with_pages_for_every_tensor(in_this_process):
    """Else the C library keeps what was freed, in the same step sometimes 45 MB more than in others."""
    assert memory.in_a_process("full", quick=True) >= 0
    assert in_this_process == [os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}]


def test_memory_is_the_median_of_several_processes(monkeypatch):
    peaks = {"residual": [10e6, 30e6, 20e6], "block": [22e6, 99e6, 1e6], "full": [40e6] * 3}
    peaks |= {name: [24e6] * 3 for name in step.CONNECTIONS.keys() - peaks.keys()}
    monkeypatch.setattr(memory, "in_a_process", lambda name, _: peaks[name].pop(0))
    block, full, *others = memory.measure(SETTING)
    assert [row.ratio for row in (block, full, *others)] == pytest.approx([1.1, 2.0, *[1.2] * len(others)])
    assert [row.must for row in (block, full, *others)] == ["1.10", "1.25", *["1.15"] * len(others)]
    assert block.details["block, MB"] == "22.0, 99.0, 1.0"


def test_importing_attnres_over_importing_torch(in_this_process):
    (row,) = imports.measure(SETTING)
    assert row.ratio is not None and row.details["attnres, ms (aim: under 50)"] > 0


def test_the_labs_step_is_a_share_of_what_products_reach(monkeypatch):
    monkeypatch.setattr(lab, "take_turns", lambda runs, *_: [run() for run in runs.values()] and dict.fromkeys(runs, 2))
    monkeypatch.setattr("attnres.train.trainer.check_compiler", lambda _: None)  # nothing is compiled here
    threads = torch.get_num_threads()
    *rows, muon = lab.measure(SETTING)
    assert torch.get_num_threads() == threads and muon.ratio == 1
    assert [", compiled" in row.what for row in rows] == 3 * [False, True]
    assert [row.what.split(", ")[1] for row in rows] == [arm for arm in lab.ARMS for _ in range(2)]
    _, operations = lab.products(lab.QUICK)
    assert operations == 6 * 32 * (4 * 64 * 64 + 3 * 64 * 176)
    for row in rows:
        arm = lab.with_arm(lab.QUICK, row.what.split(", ")[1])
        assert row.ratio == pytest.approx(lab.training_flops(arm.model) * lab.QUICK.tokens_per_step / operations)


def test_what_machine_code_says(monkeypatch):
    sass = pytest.importorskip("attnres.bench.sass")
    listing = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
.L_x_1:
        /*0010*/                   LDG.E R2, desc[UR4][R2.64] ;
.L_x_0:
        /*0020*/                   FADD R2, R2, R3 ;
        /*0030*/              @!P0 BRA `(.L_x_2) ;
        /*0040*/                   STL [R1], R2 ;
.L_x_2:
        /*0050*/               @P1 BRA `(.L_x_0) ;
        /*0060*/                   BRA.U UP0, `(.L_x_1) ;
        /*0070*/                   EXIT ;
.L_x_3:
        /*0080*/                   BRA `(.L_x_4) ;
        .type           $__internal_0_$__slowpath,@function
$__internal_0_$__slowpath:
        /*0090*/                   RET.REL.NODEC R4 `(kernel) ;
"""
    monkeypatch.setattr(sass, "_tool", lambda *_, **__: listing)
    code = sass.code_of(b"")
    assert (
        sorted((loop.depth, loop.instructions) for loop in code.loops) == [(0, 3), (1, 2), (2, 4)] and code.local == 1
    )
    assert code.issued((1, 10, 90)) == 3 + 20 + 360
    assert sass.ctas_per_sm("sm_90", 1, 128, 0) == 16 and sass.ctas_per_sm("sm_90", 4, 40, 0) == 12
    assert sass.ctas_per_sm("sm_80", 1, 32, 24576) == 6 and sass.ctas_per_sm("sm_90", 1, 32, 24576) == 9


def test_what_a_stack_moves(kernel):
    """The design is held to its bytes: docs/PERFORMANCE.md has the table."""
    traffic = pytest.importorskip("attnres.bench.traffic")
    forward, backward, decoding = traffic.measure(SETTING)
    assert 0 < forward.ratio < 8.7 and 0 < backward.ratio < 11.2
    assert backward.details.get("zeros_like", 0) < 0.01, "the readout's gradient comes from outside of the stack"
    assert 1 < decoding.ratio < 1.05, "a launch at each site, at the readout, and the sum of the last"


def test_bytes_are_not_counted_of_plain_pytorch(monkeypatch):
    """Without the CPU kernel no call comes to the operators whose launches are counted: ten times too many bytes."""
    traffic = pytest.importorskip("attnres.bench.traffic")
    monkeypatch.setattr(traffic, "native_backend", lambda _: "reference")
    with pytest.raises(UsageError, match="install g"):
        traffic.measure(SETTING)


@pytest.mark.parametrize("lost", [0, 1])
def test_bytes_sent_are_held_against_the_cost_model(lost):
    """Transition by transition; each entry is one float32 tensor of the stream."""
    sizes, chunks = parallel.QUICK, parallel.PIPELINE * parallel.VIRTUAL
    sites = [range(4 * chunk, 4 * chunk + 4) for chunk in range(chunks)]
    counted = counted_transfers(sites, parallel.BLOCK_SIZE, parallel.PIPELINE)
    traffic = {name: Counter() for name in parallel.CONTENDERS}
    for name, entries in (("block", counted.cached), ("block, naive", counted.naive)):
        for chunk, number in enumerate(entries, 1):
            traffic[name][chunk, "forward"] = traffic[name][chunk, "backward"] = sizes.entry_bytes * int(number)
    traffic["block"][chunks - 1, "forward"] -= lost * sizes.entry_bytes
    total, peak = parallel._byte_rows(sizes, traffic, "{}", "here")
    says = [str(value)[:3] for name, value in total.details.items() if "as counted" in name]
    assert says == (["yes", "NO:"] if lost else ["yes", "yes"])
    assert total.ratio == pytest.approx((21 - lost) / 35) and peak.ratio == pytest.approx(4 / 8)


@pytest.mark.slow
def test_an_attached_model_and_the_microscope(in_this_process):
    pytest.importorskip("transformers")
    from attnres.bench import hf, look

    rows = hf.measure(SETTING)
    assert [row.ratio is not None and row.ratio > 0 for row in rows] == [True] * 9
    assert rows[-1].details["convert, peak MB"] > 0
    rows = look.measure(SETTING)
    assert [row.what.rpartition(" over ")[2] for row in rows] == ["1 s", "0.3 s", "5 s"]
    for row, budget in zip(rows, (1.0, 0.3, 5.0), strict=True):
        assert row.ratio == pytest.approx(float(row.details["answer, ms"]) / 1e3 / budget)

"""The parts of `attnres bench`, on sizes too small to mean anything and on the CPU, the GPU's part too."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch

from attnres.bench import (
    curves,
    decode,
    gpu,
    graphs,
    hf,
    imports,
    lab,
    look,
    measure,
    memory,
    operator,
    readers,
    stack,
    step,
    targets,
)
from attnres.bench.measure import Row, Setting, take_turns
from attnres.errors import UsageError

CPU = torch.device("cpu")
SETTING = Setting(rounds=1, quick=True)
SMALL = operator.Shape(2, 4, 16, 3)


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for module in (operator, gpu, curves):
        monkeypatch.setattr(module, "copy_bandwidth", lambda *_: 1e10)


def test_the_operator_is_held_against_all_that_run_here():
    first, *others = operator.measure(SETTING)
    contenders = {"attnres", "stacked", "compiled reference", "compiled stacked", "fla-core"}
    assert {name.removesuffix(", ms") for name in first.details if name.endswith(", ms")} >= contenders
    assert all(row.ratio is not None and row.ratio > 0 for row in (first, *others))
    for name in ("flash-attn-res", "liger-kernel"):
        assert "CUDA" in str(first.details[name]), "a package that cannot run says why"


def test_what_does_not_compile_is_left_out_of_every_row(monkeypatch):
    failing = readers.plain() | {"compiled reference": lambda *_: 1 / 0}
    monkeypatch.setattr(readers, "plain", lambda: failing)
    timed = []

    def in_processes_of_their_own(names, *_):
        timed.extend(names)
        return dict.fromkeys(names, 1.0)

    monkeypatch.setattr(operator, "in_processes_of_their_own", in_processes_of_their_own)
    stacked, *compiled, _ = operator.measure(SETTING)
    assert stacked.ratio == 1 and [row.ratio for row in compiled] == [None, None]
    assert "compiled reference" not in timed, "its process would fail"
    assert "ZeroDivisionError" in str(stacked.details["compiled reference"])


def test_a_wrong_contender_gets_no_speed():
    wrong = {
        "attnres": lambda *x: 0.999 * readers.ours(*x),  # output
        "detached": lambda sources, query, gain: readers.stacked(sources, query, gain.detach() + 0 * gain),  # gradient
        "raises": lambda *_: 1 / 0,
        "stacked": readers.stacked,
    }
    result = operator.compare(SMALL, wrong, SETTING, {})
    assert set(result.seconds) == {"stacked"}
    assert result.errors["attnres"] == pytest.approx(1e-3, rel=0.1) and result.errors["detached"] > 0.1
    assert result.missing["raises"].startswith("ZeroDivisionError")
    assert result.over("stacked") is None and result.over_the_next() is None


def test_bytes_that_must_move():
    shape = operator.Shape(2, 4, 16, 3, torch.bfloat16)
    source = 2 * 4 * 16 * 2
    forward, backward = 3 * source + source, 3 * source + source + 3 * source
    assert operator.bytes_to_move(shape) == forward + backward


@pytest.mark.parametrize("kind", ["identity", "SwiGLU"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_stacks_agree(kind, dtype):
    shape = stack.Shape(kind, 5, 64, 2, 4, 2, dtype)
    result = stack.compare(shape, SETTING)
    assert set(result.seconds) == {"attnres", "stacked", "compiled reference", "compiled stacked", "fla-core"}
    assert all(error < stack.TOLERANCE[dtype] for error in result.errors.values())
    assert "CUDA" in result.missing["flash-attn-res"]


def test_a_wrong_stack_is_found(monkeypatch):
    def cumulative(x, model):  # SPEC.md 13, trap 3: the partial is never begun anew
        values, partial = (x,), 0
        for site, sublayer in enumerate(model.sublayers):
            read = readers.stacked(values, model.connection.query[site], model.connection.gain[site])
            partial = partial + sublayer(read)
            values = (*values[: 1 + -(-site // 2)], partial)
        return readers.stacked(values, model.connection.query[-1], model.connection.gain[-1])

    monkeypatch.setattr(stack, "ours", cumulative)
    result = stack.compare(stack.Shape("identity", 5, 64, 2, 4, 2, torch.float32), SETTING)
    assert "attnres" in result.errors and "attnres" not in result.seconds


def test_a_step_of_a_stack_begins_without_gradients():
    """What it adds to the memory that is taken already is then with them."""
    model, x, grad = stack.make_inputs(stack.Shape("SwiGLU", 3, 16, 2, 4, 2, torch.float32))
    stack._forward_backward(stack.ours, model, x, grad)()
    assert all(leaf.grad is None for leaf in (x, *model.parameters()))


def test_a_stack_that_does_not_run_at_its_size_or_in_no_graph_stops_no_other(monkeypatch):
    stacks = dict.fromkeys(("attnres", "large", "eager", "greedy"), stack.ours)
    monkeypatch.setattr(stack, "contenders", lambda _: (stacks, {}))

    def raising(*errors):
        outcomes = iter(errors)

        def step(run, *_):
            if error := next(outcomes):
                raise error
            return run

        return step

    monkeypatch.setattr(stack, "peak_bytes", raising(None, RuntimeError("too large"), None, None))
    uncaptured = None, RuntimeError("a copy to the host"), torch.OutOfMemoryError()
    monkeypatch.setattr(stack, "captured", raising(*uncaptured))
    result = stack.compare(stack.Shape("SwiGLU", 3, 16, 2, 4, 2, torch.float32), SETTING)
    assert result.seconds.keys() == {"attnres", "eager"}
    assert "too large" in result.missing["large"] and result.missing["greedy"] == "out of memory"
    assert "a copy to the host" in str(result.notes["eager, not captured"])


def test_every_row_of_the_gpu_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = list(gpu.measure(SETTING))
    assert len(rows) == len(gpu.GOALS) and {row.measured for row in rows} == {"not measured"}
    measured = list(gpu.measure_on(CPU, gpu.QUICK, SETTING))
    assert {row.what.partition(", ")[0] for row in measured} == {row.what.partition(", ")[0] for row in rows}
    for row in measured:
        assert (row.ratio is None) == ("peak memory" in row.what), "a CPU does not count what a step allocates"
        assert row.where == "cpu"
    shares = [row for row in measured if "share of the copy bandwidth" in row.what]
    assert [row.ratio for row in shares] == pytest.approx([row.details["GB/s"] / 10 for row in shares])


def test_peers_take_part_with_and_without_their_stack():
    operators = gpu._operator_row(gpu._operator_shape(CPU, 32, gpu.QUICK), "cpu", SETTING)
    phase_1, merge = gpu._phase_rows(CPU, 32, gpu.QUICK, "cpu", SETTING)
    timed = {name.removesuffix(", ms") for name in operators.details if name.endswith(", ms")}
    assert timed >= {"attnres", "compiled reference", "stacked", "stacked, its stack given", "fla-core"}
    for name in ("fla-core, Gluon", "fla-core, checkpoint level 0", "flash-attn-res", "liger-kernel"):
        assert "not measured" in str(operators.details[name]), "what cannot run here says why"
        assert "not measured" in str(phase_1.details[f"{name}, query by query"])
    assert {"attnres, ms", "attnres, bfloat16 results, ms", "stacked, query by query, ms"} <= phase_1.details.keys()
    assert {"attnres, ms", "eager, ms", "compiled, ms"} <= merge.details.keys()
    assert "not measured" in str(merge.details["flash-attn-res"])


def test_our_own_forms_are_no_others():
    result = operator.Comparison({"attnres": 2.0, "attnres, bfloat16 results": 1.0, "stacked": 6.0, "fla-core": 3.0})
    assert result.over_the_next() == 1.5


class FakeGPU:
    """torch.cuda as far as graphs and memory go: what is captured runs at once, and each run takes 64 bytes at most."""

    def __init__(self, monkeypatch):
        self.captured = 0
        for name, value in {
            "graph_pool_handle": lambda: "pool",
            "Stream": lambda: self,
            "current_stream": lambda: self,
            "stream": lambda _: nullcontext(),
            "CUDAGraph": lambda: self,
            "graph": self.graph,
            "synchronize": lambda *_: None,
            "reset_peak_memory_stats": lambda *_: None,
            "memory_allocated": lambda *_: 1000,
            "max_memory_allocated": lambda *_: 1064,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def wait_stream(self, _):
        pass

    @contextmanager
    def graph(self, graph, pool):
        self.captured += 1
        yield

    def replay(self):
        pass


def test_a_step_is_captured_and_its_memory_counted(monkeypatch):
    fake, runs = FakeGPU(monkeypatch), []
    cuda = torch.device("cuda")
    replay = graphs.captured(lambda: runs.append(1), cuda, graphs.new_pool(cuda))
    assert len(runs) == graphs.WARM_UP + 1 and fake.captured == 1
    replay()
    assert len(runs) == graphs.WARM_UP + 1, "a replay launches what was captured and runs no Python"
    assert graphs.peak_bytes(lambda: None, cuda) == 64 and graphs.peak_bytes(lambda: None, CPU) is None
    assert graphs.captured(replay, CPU) is replay and graphs.new_pool(CPU) is None


def test_a_captured_step_keeps_the_tensors_that_its_graph_reads(monkeypatch):
    FakeGPU(monkeypatch)
    tokens = torch.zeros(3)
    kept = weakref.ref(tokens)
    replay = graphs.captured(lambda tokens=tokens: tokens.add_(1), torch.device("cuda"))
    del tokens
    gc.collect()
    assert kept() is not None
    replay()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_row_of_the_gpu():
    rows = gpu.measure(SETTING)
    assert all(row.ratio is not None for row in rows)


def test_curves_name_their_axis():
    rows = curves.measure(SETTING)
    assert {row.details["axis"] for row in rows} == {"sources", "time", "dim"}
    for row in rows:
        assert row.details[row.details["axis"]] > 0 and "attnres, ms" in row.details


def test_every_target_takes_its_turn(monkeypatch):
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


def test_targets_without_a_kernel_say_what_to_do(monkeypatch):
    monkeypatch.setattr(targets.cpu, "load", lambda: False)
    monkeypatch.setattr(targets, "_in_a_process", lambda *_: (1.0, 1.0))
    with pytest.raises(UsageError, match="install g\\+\\+ or set CXX"):
        targets.measure(SETTING)


def test_a_target_is_measured_on_its_own_kernel():
    forward, backward = targets._in_a_process("native", "bfloat16", 1, quick=True)
    assert forward > 0 and backward > 0


def test_rows_of_the_cpu_name_the_instruction_set():
    assert SETTING.where.endswith(f", {targets.cpu.instruction_set()}")


def test_steps_of_every_connection():
    rows = step.measure(SETTING)
    assert [row.what.split(" over ")[0] for row in rows] == [f"training step, {what}" for what in step.WHAT.values()]
    for row in (*rows, *decode.measure(SETTING)):
        assert row.ratio is not None and row.ratio > 0


def test_memory_is_of_a_process_of_its_own():
    assert memory.in_a_process("full", quick=True) >= 0
    assert memory.added_by_training("full", quick=True) >= 0


def test_memory_is_measured_with_pages_for_every_tensor(monkeypatch):
    """Else the C library keeps what was freed, in the same step sometimes 45 MB more than in others."""
    given = {}

    def run(command, env, **options):
        given.update(env)
        return subprocess.CompletedProcess(command, 0, stdout="1\n")

    monkeypatch.setattr(memory.subprocess, "run", run)
    assert memory.in_a_process("full", quick=True) == 1
    assert given.pop("MALLOC_MMAP_THRESHOLD_") == "65536" and given == {**os.environ}


def test_memory_is_the_median_of_several_processes(monkeypatch):
    peaks = {"residual": [10e6, 30e6, 20e6], "block": [22e6, 99e6, 1e6], "full": [40e6] * 3}
    peaks |= {name: [24e6] * 3 for name in step.CONNECTIONS.keys() - peaks.keys()}
    monkeypatch.setattr(memory, "in_a_process", lambda name, _: peaks[name].pop(0))
    block, full, *others = memory.measure(SETTING)
    assert [row.ratio for row in (block, full, *others)] == pytest.approx([1.1, 2.0, *[1.2] * len(others)])
    assert [row.must for row in (block, full, *others)] == ["1.10", "1.25", *["1.15"] * len(others)]
    assert block.details["block, MB"] == "22.0, 99.0, 1.0"


def test_an_attached_model_over_its_plain_twin():
    pytest.importorskip("transformers")
    torch.ones(2**28).sum()  # 1.07 GB that the conversion's process does not hold
    rows = hf.measure(SETTING)
    assert [row.ratio is not None and row.ratio > 0 for row in rows] == [True] * 9
    assert rows[-1].what == "converting a checkpoint, over copying it, d 64, 4 layers"
    assert 100 < rows[-1].details["convert, peak MB"] < 1000
    assert set(rows[0].details) == {"plain, ms", "full, ms", "block, ms"}


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
def test_what_the_kernels_spill():
    kernels = pytest.importorskip("attnres.bench.kernels")
    rows = kernels.measure(SETTING)
    assert [row.measured for row in rows] == ["0.0%"] * 2
    assert [row.what.split(", ")[2].partition(":")[0] for row in rows] == ["forward", "backward"]
    assert all(
        str(details).count(" 0 bytes spilled") == 1 for row in rows for details in list(row.details.values())[1:]
    )
    forward, (backward, _) = ([*row.details.values()][1:] for row in rows)
    for text, n_moved in ((forward[0], 10), (backward, 19)):  # the sources and h; sources, gradients and h's
        moved = float(re.findall(r"([\d.]+) kB", text)[0])
        assert moved == pytest.approx(n_moved * 1024 * 2 / 1e3, rel=0.01)
        assert 100 < float(re.findall(r"(\d+) issue cycles", text)[0]) < 3000


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


def test_importing_attnres_over_importing_torch():
    (row,) = imports.measure(SETTING)
    assert row.ratio is not None and 0 < row.ratio < 1, "attnres imports far less than torch"
    assert row.details["attnres, ms (aim: under 50)"] > 0


def test_the_microscope_answers():
    rows = look.measure(SETTING)
    assert [row.what.rpartition(" over ")[2] for row in rows] == ["1 s", "0.3 s", "5 s"]
    for row, budget in zip(rows, (1.0, 0.3, 5.0), strict=True):
        assert row.ratio == pytest.approx(float(row.details["answer, ms"]) / 1e3 / budget)


def test_contenders_take_turns():
    order: list[str] = []
    contenders = {name: lambda name=name: order.append(name) for name in "ab"}
    assert set(take_turns(contenders, 3, lambda _: None, "")) == {"a", "b"}
    assert order == list("ab") * 5


def test_how_ratios_are_written():
    written = [
        Row("", "", must, "", ratio).measured for must, ratio in [("20x", 2.5), ("1.06", 1.0512), ("2%", 0.0123)]
    ]
    assert written == ["2.50x", "1.05", "1.2%"]
    assert Row("", "", "2%", "").measured == measure.NOT_MEASURED


def test_the_labs_step_is_a_share_of_what_products_reach():
    threads = torch.get_num_threads()
    *rows, muon = lab.measure(SETTING)
    details = rows[0].details
    assert muon.ratio == pytest.approx(details["torch's Muon, ms"] / details["Muon, ms"])
    compiled = [", compiled" in row.what for row in rows]
    assert torch.get_num_threads() == threads and compiled == 3 * [False, True]
    assert [row.what.split(", ")[1] for row in rows] == [arm for arm in lab.ARMS for _ in range(2)]
    for row in rows:
        assert row.ratio is not None and row.ratio > 0 and row.must.endswith("%")
        speed, peak = (value for name, value in row.details.items() if "per second" in name or "GFLOP" in name)
        arm = lab.with_arm(lab.QUICK, row.what.split(", ")[1])
        assert row.ratio == pytest.approx(lab.training_flops(arm.model) * speed / peak / 1e9)
    run, operations = lab.products(lab.QUICK)
    run()
    assert operations == 6 * 32 * (4 * 64 * 64 + 3 * 64 * 176)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter launches nothing")
def test_what_a_stack_moves():
    """The design is held to its bytes: docs/PERFORMANCE.md has the table."""
    traffic = pytest.importorskip("attnres.bench.traffic")
    forward, backward, decoding = traffic.measure(SETTING)
    assert 0 < forward.ratio < 8.7 and 0 < backward.ratio < 11.2
    assert backward.details.get("zeros_like", 0) < 0.01, "the readout's gradient comes from outside of the stack"
    assert 1 < decoding.ratio < 1.05, "a launch at each site, at the readout, and the sum of the last"
    rounded = traffic.units(traffic.Shape(round_phase_1=True))
    assert sum(sum(moved.values()) for moved in rounded) < 14.2

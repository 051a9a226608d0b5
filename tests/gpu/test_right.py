"""Whether what runs on a GPU is right: operators and rules, forward and backward, against float64.

    pytest -m gpu tests/gpu

Without a GPU the same tests run on the CPU's kernel, with small sizes, so that they do not go stale.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.bench import decode, gpu, step
from attnres.bench.measure import Setting
from attnres.connections import make_connection
from attnres.ops import add_both, add_normalised, attend
from attnres.ops.backends import native_backend
from tests.ops.cases import BF16, EPS, F16, F32, Call, value_and_gradients

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ON_GPU = [pytest.mark.gpu, NO_GPU]
CUDA = pytest.param("cuda", marks=ON_GPU)

TOLERANCE = {F32: 1e-4, BF16: 2e-2, F16: 4e-3}  # plain PyTorch rounds the gradient of each query
"""Relative, in norm, by the dtype of what is compared: it is rounded once, or twice."""

RULE_TOLERANCE = {F32: 1e-4, BF16: 1e-1}
"""The same of a stack, at every sublayer of which bfloat16 rounds: plain PyTorch is off by up to 0.08 there."""

AWKWARD = 513  # no power of two, and rows that begin at odd addresses
SUBLAYERS = 5

ONE = Call(9, dim=1024, tokens=(111,), dtypes=(BF16,), out=BF16)
SEVERAL = replace(ONE, queries=8, out=F32)
MERGE = replace(ONE, sources=1, prior=F32)
SUM = replace(MERGE, added=BF16)
NORMED = replace(SUM, norm=1.0)
READS = replace(MERGE, queries=3)


def widths(call: Call) -> Iterator[Call]:
    yield from (replace(call, dim=dim) for dim in (64, 1024, 4096, 7168))
    for dtypes in ((F32,), (BF16,), (F16,), (F32, BF16)):
        added = dtypes[0] if call.added else None
        out = dtypes[0] if call.queries == 1 or call.prior else F32  # phase 1 alone does not round
        yield replace(call, dim=AWKWARD, dtypes=dtypes, out=out, added=added)


CALLS = [
    *(call for kind in (ONE, SEVERAL, MERGE, SUM, READS) for call in widths(kind)),
    *(replace(kind, sources=n) for kind in (ONE, SEVERAL) for n in (1, 2, 16, 17, 40)),
    *(replace(kind, **other) for kind in (ONE, SEVERAL) for other in ({"tokens": (1,)}, {"gains": False})),
    *(replace(kind, scale=5.3) for kind in (ONE, SEVERAL)),
    *(replace(SEVERAL, queries=s) for s in (2, 3, 24, 33)),
    *(replace(NORMED, dim=dim) for dim in (64, AWKWARD, 1024, 4096, 7168)),
    *(replace(ONE, norm=0.0, sources=n) for n in (2, 16, 40)),
    replace(MERGE, sources=3),
    replace(SUM, sources=9, prior=None),
    replace(SUM, prior=None),
    replace(READS, sources=2, queries=5),
]


@pytest.fixture(params=["cpu", CUDA])
def device(request) -> torch.device:
    if request.param == "cuda":
        assert native_backend("cuda") == "triton"
    return torch.device(request.param)


def small(call: Call) -> Call:
    return replace(call, dim=min(call.dim, 33), tokens=(3,))


def on(device: torch.device, call: Call) -> Call:
    return call if device.type == "cuda" else small(call)


def inputs_of(call: Call, device: torch.device) -> list[Tensor]:
    return [x.to(device) for x in call.inputs()]


def assert_close(ours: Sequence[Tensor], exact: Sequence[Tensor], allowed: dict[torch.dtype, float]) -> None:
    """Gradients that are exactly zero count against a thousandth of the largest."""
    floor = 1e-3 * torch.stack([b.double().norm() for b in exact]).max()
    for a, b in zip(ours, exact, strict=True):
        error = (a.double() - b.double()).norm() / torch.maximum(b.double().norm(), floor)
        assert error <= allowed[a.dtype]


def assert_right(
    function: Callable[..., tuple[Tensor, ...]],
    exact: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    allowed: dict[torch.dtype, float] = TOLERANCE,
) -> None:
    doubles = [x.double() for x in inputs]
    assert_close(value_and_gradients(function, *inputs), value_and_gradients(exact, *doubles), allowed)


EACH = [*(("cpu", call) for call in dict.fromkeys(map(small, CALLS))),
        *(pytest.param("cuda", call, marks=ON_GPU) for call in CALLS)]  # fmt: skip


@pytest.mark.parametrize(("device", "call"), EACH, ids=str, indirect=["device"])
def test_operators(device, call):
    assert_right(call.operator("auto"), call.exact, inputs_of(call, device))


@pytest.mark.parametrize("call", [ONE, SEVERAL, MERGE], ids=str)
def test_without_gradients_of_the_log_sum_exp_and_strided(device, call):
    call = on(device, call)

    def outs(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        return lambda *x: function(*x)[: call.queries]

    inputs = inputs_of(call, device)
    for i in range(call.sources):  # the second of each pair begins at an odd address
        v = inputs[i]
        odd = torch.cat([v.new_zeros(1), v.flatten()])[1:].view(v.shape)
        inputs[i] = odd if i % 2 else v.mT.contiguous().mT
    assert_right(outs(call.operator("auto")), outs(call.exact), inputs)


@pytest.mark.parametrize("call", [ONE, SEVERAL, MERGE, READS], ids=str)
def test_the_same_bits_twice(device, call):
    call = on(device, call)
    inputs, function = inputs_of(call, device), call.operator("auto")
    assert all(map(torch.equal, value_and_gradients(function, *inputs), value_and_gradients(function, *inputs)))


@pytest.mark.parametrize("sums", [0, 1, 2])
@pytest.mark.parametrize(
    ("dim", "dtype"), [(64, BF16), (1024, BF16), (7168, BF16), *((AWKWARD, dtype) for dtype in TOLERANCE)]
)
def test_normalised_sums(device, dim, dtype, sums):
    inputs = [torch.randn(3, min(dim, 33) if device.type == "cpu" else dim, device=device) for _ in range(1 + sums)]

    def by(backend):
        if sums == 2:
            return lambda *x: add_both(*x, EPS, dtype, backend)
        return lambda *x: (add_normalised(*x, eps=EPS, backend=backend),)

    assert_right(by("auto"), by("reference"), [x.to(dtype) for x in inputs])


class Sublayer(nn.Module):
    """A SwiGLU MLP that takes as many mixtures as a site reads."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = -(-8 * dim // 3 // 64) * 64
        self.norm = nn.RMSNorm(dim, EPS)
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, dim, bias=False)

    def forward(self, *reads: Tensor) -> Tensor:
        h = sum((number * h for number, h in enumerate(reads[1:], 2)), reads[0])
        gate, up = self.gate_up(self.norm(h)).chunk(2, -1)
        return self.out(F.silu(gate) * up)


class Stack(nn.Module):
    def __init__(self, rule: str, dim: int) -> None:
        super().__init__()
        self.connection = make_connection(rule, dim, SUBLAYERS)
        self.sublayers = nn.ModuleList(Sublayer(dim) for _ in range(SUBLAYERS))
        with torch.no_grad():
            for parameter in self.connection.parameters():  # at their start many have no gradient
                parameter += torch.randn_like(parameter) / dim**0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.connection.readout(self.connection.run(self.connection.start(x), list(self.sublayers)))


@pytest.mark.parametrize("dtype", RULE_TOLERANCE)
@pytest.mark.parametrize(
    "rule",
    [
        "block:block_size=3",
        "block:block_size=3,round_phase_1=true",
        "block:block_size=3,reads=qkv-gate-up",
        "full",
        "window",
        "delta:block_size=3",
        "haares",
        "rms-block:block_size=3",
        "rms-full",
        "interlayer",
    ],
)
def test_rules(device, rule, dtype):
    if device.type == "cpu" and dtype == BF16:
        pytest.skip("so few numbers say nothing of rounding")
    tokens, dim = (111, 1024) if device.type == "cuda" else (3, 64)
    with torch.device(device):
        model, x = Stack(rule, dim).to(dtype), torch.randn(1, tokens, dim, dtype=dtype)
    exact, names = copy.deepcopy(model).double(), [name for name, _ in model.named_parameters()]

    def run(of: nn.Module, x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        return (torch.func.functional_call(of, dict(zip(names, parameters, strict=True)), (x,)),)

    assert_right(partial(run, model), partial(run, exact), [x, *model.parameters()], RULE_TOLERANCE)


@pytest.mark.parametrize("name", step.RULES)
@torch.inference_mode()
def test_decoding(device, name):
    sizes = decode.DecoderSizes(512, 4) if device.type == "cuda" else decode.DecoderSizes(64, 1)
    with torch.device(device):
        model = step.build_model(name, sizes.dim, sizes.layers)
        tokens = torch.randint(0, 256, (1, 12))
    caches = model.new_caches(batch=1)
    parts = [model(tokens[:, :8], caches), *(model(tokens[:, i : i + 1], caches) for i in range(8, 12))]
    assert_close([torch.cat(parts, 1)], [copy.deepcopy(model).double()(tokens)], TOLERANCE)


@pytest.mark.parametrize("call", [ONE, SEVERAL], ids=str)
def test_a_graph_replayed_on_other_numbers(device, call):
    call = on(device, call)
    inputs, function = inputs_of(call, device), call.operator("auto")
    kept: list[Tensor] = []

    def run() -> None:
        kept[:] = value_and_gradients(function, *inputs)

    replay = gpu.captured(run, device)
    for x in inputs:
        x.copy_(x.flip(-1))
    replay()
    assert_close(kept, value_and_gradients(function, *inputs), TOLERANCE)


@pytest.mark.gpu
@NO_GPU
def test_compiled():
    compiled = torch.compile(ONE.operator("auto"), fullgraph=True)
    assert_right(compiled, ONE.exact, inputs_of(ONE, torch.device("cuda")))


@pytest.mark.gpu
@NO_GPU
def test_offsets_beyond_2_to_the_31():
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GB of the GPU's memory")
    source = torch.zeros(2**21 + 8, 1024, device="cuda", dtype=BF16)
    source[-1] = 3.0
    (h,), _ = attend([source, source], [torch.zeros(1024, device="cuda")], [], (), 1e-6, BF16, "triton")
    assert torch.equal(h[-1], source[-1]) and not h[:-1].any()


@pytest.mark.gpu
@NO_GPU
def test_every_row_of_the_bench():
    sizes = gpu.GpuSizes((32,), 3, 2**8, 2, decode.DecoderSizes(64, 1))
    assert all(row.ratio is not None for row in gpu.measure_on(torch.device("cuda"), sizes, Setting(rounds=1)))

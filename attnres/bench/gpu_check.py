"""Whether what runs on a GPU is right: operators and rules of attention over depth, both ways, against float64.

`attnres bench gpu --check` does this first: a speed says nothing before. Each row is one path, and its details are the
cases tried: the worst of the relative errors in norm, over outputs and all gradients, divided by what is allowed. Under
Triton's interpreter the same runs on the CPU with tiny sizes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnres.bench import decode, gpu, stack, step
from attnres.bench.gpu_calls import (
    BF16,
    F16,
    F32,
    TOLERANCE,
    Call,
    error_of,
    output_gradients,
    outputs_and_gradients,
    worst,
)
from attnres.bench.graphs import captured
from attnres.bench.measure import Row, Setting, why
from attnres.connections import make_connection
from attnres.errors import UsageError, install_command
from attnres.ops import add_normalised, attend
from attnres.ops.backends import native_backend

RULE_TOLERANCE = {F32: 1e-4, BF16: 1e-1}
"""The same of a stack, at every sublayer of which bfloat16 rounds: plain PyTorch is off by up to 0.08 there."""

RULES = (
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
)
SUBLAYERS = 5

Check = Callable[[], float]
"""Returns the worst error over what is allowed: right up to 1."""


@dataclass(frozen=True)
class Sizes:
    """Widths and tokens to try."""

    dims: tuple[int, ...]
    usual: int
    awkward: int  # no power of two, and rows that begin at odd addresses
    tokens: int
    queries: tuple[int, ...]
    sources: tuple[int, ...]
    rule_dtypes: tuple[torch.dtype, ...]
    decoder: decode.Sizes


FULL = Sizes(
    (64, 1024, 4096, 7168), 1024, 513, 111, (2, 3, 24, 33), (1, 2, 16, 17, 40), (F32, BF16), decode.Sizes(512, 4)
)
TINY = Sizes((16,), 16, 33, 3, (3,), (1, 2, 17), (F32,), decode.QUICK)


def measure(setting: Setting) -> list[Row]:
    """Check everything.

    Raises:
        UsageError: there is neither a GPU nor Triton's interpreter.
    """
    device = gpu.device_here()
    if device is None:
        raise UsageError(
            "bench gpu --check needs a GPU, and torch sees none: install a torch built for CUDA where there is one "
            "(TRITON_INTERPRET=1 in the environment tries the command without)"
        )
    if native_backend(device.type) != "triton":
        raise UsageError(f"bench gpu --check needs Triton: {install_command('gpu')}")
    sizes = TINY if setting.quick or device.type == "cpu" else FULL
    return check_on(device, sizes, setting)


def passed(rows: Sequence[Row]) -> bool:
    return all(row.ratio is not None and row.ratio <= 1 for row in rows)


def check_on(device: torch.device, sizes: Sizes, setting: Setting) -> list[Row]:
    where, rows = gpu.name_of(device), []
    everything = {path: cases for path, cases in paths(device, sizes).items() if cases}
    for number, (path, cases) in enumerate(everything.items(), 1):
        details: dict[str, float | str] = {}
        for name, check in cases.items():
            setting.progress(f"checking {path} ({number} of {len(everything)}): {name}")
            torch.manual_seed(0)
            try:
                details[name] = check()
            except Exception as error:  # the rest is still checked
                details[name] = why(error)
        errors = [value for value in details.values() if isinstance(value, float)]
        # max of tensors, because a NaN among numbers is lost
        most = float(torch.tensor(errors).max()) if len(errors) == len(details) else None
        rows.append(Row(f"{path}: worst error over what is allowed", where, "1", "-", most, details))
    return rows


def paths(device: torch.device, sizes: Sizes) -> dict[str, dict[str, Check]]:
    """Every path, and the cases of each by name."""

    def calls(*calls: Call) -> dict[str, Check]:
        return {str(call): lambda call=call: call.error(device) for call in calls}

    one = Call(sizes.usual, tokens=sizes.tokens)
    several = replace(one, queries=8)
    merge = replace(one, sources=1, merges=True)
    reads = replace(several, queries=3, sources=1, merges=True)
    return {
        "one query": calls(*_shapes(one, sizes)),
        "several queries": calls(*_shapes(several, sizes), *(replace(several, queries=s) for s in sizes.queries)),
        "merges": calls(*_widths(merge, sizes), replace(merge, sources=3), replace(merge, lses=False)),
        "sums and reads of them": calls(
            *_widths(replace(merge, adds=True), sizes), replace(one, adds=True), replace(one, adds=True, sources=1)
        ),
        "merges of several reads": calls(*_widths(reads, sizes), replace(reads, sources=2, queries=5)),
        "normalised sums": _normalised(device, sizes),
        "rules in a stack": _rules(device, sizes),
        "decoding": _decoding(device, sizes),
        "CUDA graphs": _graphs(device, one, several, sizes),
        "the same bits twice": {str(c): lambda c=c: c.repeats(device) for c in (one, several, merge, reads)},
        "inside torch.compile": _compiled(device, one),
        "many elements": _many(device),
    }


def _widths(call: Call, sizes: Sizes) -> Iterator[Call]:
    """Every width, every dtype at an awkward one."""
    yield from (replace(call, dim=dim) for dim in sizes.dims)
    yield from (replace(call, dim=sizes.awkward, dtypes=dtypes) for dtypes in ((F32,), (BF16,), (F16,), (F32, BF16)))


def _shapes(call: Call, sizes: Sizes) -> Iterator[Call]:
    yield from _widths(call, sizes)
    yield from (replace(call, sources=n) for n in sizes.sources)
    yield replace(call, tokens=1)
    yield replace(call, gains=False, lses=False)
    yield replace(call, scale=5.3)
    yield replace(call, strided=True)


def _normalised(device: torch.device, sizes: Sizes) -> dict[str, Check]:
    def check(dim: int, dtype: torch.dtype, total: bool) -> float:
        inputs = [torch.randn(sizes.tokens, dim, device=device).to(dtype) for _ in range(1 + total)]
        return error_of(
            lambda *x: [add_normalised(*x, backend="triton")],
            lambda *x: [add_normalised(*x, backend="reference")],
            inputs,
            TOLERANCE,
        )

    cases = [(dim, BF16) for dim in sizes.dims] + [(sizes.awkward, dtype) for dtype in TOLERANCE]
    return {
        f"d {dim}, {dtype}{', added to a sum' * total}": lambda dim=dim, dtype=dtype, total=total: check(
            dim, dtype, total
        )
        for dim, dtype in cases
        for total in (False, True)
    }


class _Stack(nn.Module):
    """A rule with sublayers that take as many mixtures as a site reads."""

    def __init__(self, rule: str, dim: int) -> None:
        super().__init__()
        self.connection = make_connection(rule, dim, SUBLAYERS)
        self.sublayers = nn.ModuleList(_Sublayer(dim) for _ in range(SUBLAYERS))
        with torch.no_grad():
            for parameter in self.connection.parameters():  # at their start many have no gradient
                parameter += torch.randn_like(parameter) / dim**0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.connection.readout(self.connection.run(self.connection.start(x), list(self.sublayers)))


class _Sublayer(stack.SwiGLU):
    def forward(self, *reads: Tensor) -> Tensor:
        return super().forward(sum((number * h for number, h in enumerate(reads[1:], 2)), reads[0]))


def _rules(device: torch.device, sizes: Sizes) -> dict[str, Check]:
    def check(rule: str, dtype: torch.dtype) -> float:
        with torch.device(device):
            model = _Stack(rule, sizes.usual).to(dtype)
            x = torch.randn(1, sizes.tokens, sizes.usual, dtype=dtype)
        exact = copy.deepcopy(model).double()
        ours, theirs = _with_parameters(model), _with_parameters(exact)
        return error_of(ours, theirs, [x, *model.parameters()], RULE_TOLERANCE)

    return {
        f"{rule}, {dtype}": lambda rule=rule, dtype=dtype: check(rule, dtype)
        for rule in RULES
        for dtype in sizes.rule_dtypes
    }


def _with_parameters(model: nn.Module) -> Callable[..., list[Tensor]]:
    """The model as a function of its input and its parameters."""
    names = [name for name, _ in model.named_parameters()]

    def function(x: Tensor, *parameters: Tensor) -> list[Tensor]:
        return [torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))]

    return function


def _decoding(device: torch.device, sizes: Sizes) -> dict[str, Check]:
    def check(name: str) -> float:
        with torch.device(device):
            model = step.build_model(name, sizes.decoder.dim, sizes.decoder.layers)
            tokens = torch.randint(0, 256, (1, 12))
        with torch.inference_mode():
            caches = model.new_caches(batch=1)
            parts = [model(tokens[:, :8], caches), *(model(tokens[:, i : i + 1], caches, i) for i in range(8, 12))]
            return worst([torch.cat(parts, 1)], [copy.deepcopy(model).double()(tokens)], TOLERANCE)

    return {name: lambda name=name: check(name) for name in step.CONNECTIONS if name != "residual"}


def _graphs(device: torch.device, one: Call, several: Call, sizes: Sizes) -> dict[str, Check]:
    """A graph that is replayed on other numbers gives what a plain call gives for them."""

    def check(call: Call) -> float:
        inputs, function = call.inputs(device), call.function("triton")
        grads = output_gradients(function(*inputs))
        kept: list[Tensor] = []

        def run() -> None:
            kept[:] = outputs_and_gradients(function, inputs, grads)

        replay = captured(run, device)
        for x in inputs:
            x.copy_(x.flip(-1))
        replay()
        return worst(kept, outputs_and_gradients(function, inputs, grads), TOLERANCE)

    cases = {f"forward and backward, {call}": lambda call=call: check(call) for call in (one, several)}
    return cases | {"a decode step": lambda: _captured_step(device, sizes.decoder)}


@torch.inference_mode()
def _captured_step(device: torch.device, sizes: decode.Sizes) -> float:
    with torch.device(device):
        model = step.build_model("block", sizes.dim, sizes.layers)
        prompt, token = torch.randint(0, 256, (1, 8)), torch.randint(0, 256, (1, 1))
    caches = model.new_caches(batch=1)
    model(prompt, caches)
    kept: list[Tensor] = []

    def run() -> None:
        for cache in caches:
            cache.length = prompt.numel()
        kept[:] = [model(token, caches, prompt.numel())]

    replay = captured(run, device)
    token.copy_((token + 1) % 256)
    replay()
    replayed = kept[0].clone()
    run()
    return worst([replayed], kept, TOLERANCE)


def _compiled(device: torch.device, one: Call) -> dict[str, Check]:
    if device.type != "cuda":  # a compiler's minute for what tests/ops has
        return {}
    call = replace(one, lses=False)
    compiled = torch.compile(call.function("auto"), fullgraph=True)
    return {str(call): lambda: error_of(compiled, call.function("reference"), call.inputs(device), TOLERANCE)}


def _many(device: torch.device) -> dict[str, Check]:
    """Offsets beyond 2^31, where the memory allows it."""
    if device.type != "cuda" or torch.cuda.mem_get_info(device)[0] < 24 * 2**30:
        return {}

    def check() -> float:
        source = torch.zeros(2**21 + 8, 1024, device=device, dtype=BF16)
        source[-1] = 3.0
        (h,), _ = attend([source, source], [torch.zeros(1024, device=device)], [], (), 1e-6, BF16, "triton")
        return 0.0 if torch.equal(h[-1], source[-1]) and not h[:-1].any() else float("inf")

    return {"2^31 and 8192 more": check}

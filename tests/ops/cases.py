"""What the operator tests share: inputs, gradients, and the definition in float64 as plainly as it can be written."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

EPS = 1e-6

FUSED = "triton" if os.environ.get("TRITON_INTERPRET") == "1" else "cpu"
"""The backend of this process. `test_triton.py` runs the operators' tests again, under Triton's interpreter."""

both_backends = pytest.mark.parametrize("backend", ["reference", FUSED])

BF16_ROUNDING = 4e-3 if FUSED == "cpu" else 8e-3  # the interpreter cuts off where a GPU rounds

if FUSED == "triton":
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    from attnres.ops import triton_backend

    interpreted_dot = InterpreterBuilder.create_dot

    def create_dot(self, a, b, *rest):
        """Multiply numbers: the interpreter multiplies the bit patterns of bfloat16."""
        wide = [
            x if x.dtype != tl.bfloat16 else TensorHandle(self.cast_impl(x, tl.float32).data, tl.float32)
            for x in (a, b)
        ]
        return interpreted_dot(self, *wide, *rest)

    InterpreterBuilder.create_dot = create_dot

    # So that small inputs, too, need several launches, programs of several tokens and tiles of channels.
    triton_backend.AT_ONCE, triton_backend.QUERIES, triton_backend.CHANNELS = 4, 4, 16
    triton_backend.PROGRAMS, triton_backend.RUNS = 6, 4


def make_sources(count: int, *shape: int, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> list[Tensor]:
    """Sources of unlike magnitudes, with the dtypes taken in turns."""
    return [(torch.randn(*shape) * 3 ** (i % 4 - 1)).to(dtypes[i % len(dtypes)]) for i in range(count)]


def make_vector(dim: int, dtype: torch.dtype = torch.float32, centre: float = 0.0) -> Tensor:
    """A query of which scores come out at order one, or with centre=1 a gain."""
    return (centre + torch.randn(dim) / dim**0.5).to(dtype)


def plain(sources: Sequence[Tensor], query: Tensor, gain: Tensor | None = None, eps: float = EPS) -> Tensor:
    """The definition, in the dtype of the input: SPEC.md 3."""
    v = torch.stack(list(sources))
    keys = v / (v.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    if gain is not None:
        keys = keys * gain
    scores = (keys * query).sum(-1)
    weights = scores.exp() / scores.exp().sum(0)
    return (weights.unsqueeze(-1) * v).sum(0)


def plain_lse(sources: Sequence[Tensor], query: Tensor, eps: float = EPS) -> Tensor:
    v = torch.stack(list(sources))
    return ((v / (v.pow(2).mean(-1, keepdim=True) + eps).sqrt()) * query).sum(-1).exp().sum(0).log()


def naive_attnres() -> Callable:
    """fla's oracle, from its file: importing fla itself needs Triton."""
    (folder,) = importlib.util.find_spec("fla").submodule_search_locations
    spec = importlib.util.spec_from_file_location("naive", Path(folder) / "ops" / "attnres" / "naive.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.naive_attnres


def value_and_gradients(function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> list[Tensor]:
    """function(*inputs), flattened, then the gradient of each input under fixed, uneven weights of the outputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    total = sum((out.double() * _uneven(out)).sum() for out in outputs)
    total.backward()
    return [*(out.detach() for out in outputs), *(leaf.grad for leaf in leaves)]


def in_double(*inputs: Tensor) -> list[Tensor]:
    return [x.double() for x in inputs]


def assert_near(
    actual: Sequence[Tensor], exact: Sequence[Tensor], tolerance: float = 2e-5, floor: float = 1e-9
) -> None:
    """Each tensor within `tolerance` of the exact one, relative to its norm; bfloat16 within its own rounding.

    Norms below `floor` count as it: a gradient may be exactly zero.

    In norm and not in correlation: 4% of a softmax lost everywhere would pass the latter.
    """
    assert len(actual) == len(exact)
    for number, (one, other) in enumerate(zip(actual, exact, strict=True)):
        allowed = max(tolerance, BF16_ROUNDING) if one.dtype == torch.bfloat16 else tolerance
        error = (one.double() - other.double()).norm() / other.double().norm().clamp_min(floor)
        assert one.shape == other.shape, f"tensor {number}: {one.shape} is not {other.shape}"
        assert error <= allowed, f"tensor {number} of {len(exact)} is off by {error:.1e}"


def _uneven(x: Tensor) -> Tensor:
    """Exact in every dtype, so that a bfloat16 output's gradient is not rounded on its way in."""
    generator = torch.Generator().manual_seed(x.numel())
    return torch.randn(x.shape, generator=generator).bfloat16().double().to(x.device)

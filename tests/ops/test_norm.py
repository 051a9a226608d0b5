"""plain_norm: the modules whose RMSNorm a read can take in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from attnres.ops import plain_norm


class Written(nn.Module):
    """As models write it: offset 0 is Llama's form, 1 Gemma's, and any other nobody's."""

    def __init__(self, offset: float = 0.0, extra: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 0.5 - offset))
        self.variance_epsilon = 1e-3
        self.shift = torch.tensor([offset, extra])

    def forward(self, x: Tensor) -> Tensor:
        n = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (n * (self.weight.float() + self.shift[0]) + self.shift[1]).to(x.dtype)


def twice(norm: nn.Module) -> nn.Module:
    norm.forward = lambda x: 2 * type(norm).forward(norm, x)
    return norm


def hooked(norm: nn.Module) -> nn.Module:
    norm.register_forward_pre_hook(lambda *_: None)
    return norm


def scaled(norm: nn.Module) -> nn.Module:
    parametrize.register_parametrization(norm, "weight", nn.Tanh())
    return norm


@pytest.mark.parametrize("norm", [nn.RMSNorm(8, 1e-3), Written(), Written(1.0)], ids=["torch", "llama", "gemma"])
def test_known_forms(norm):
    found, h = plain_norm(norm), torch.randn(3, 8)
    assert found is not None and found.weight is norm.weight and found.module is norm
    torch.testing.assert_close(found._replace(module=None)(h), norm(h))
    norm.__dict__.update({name: 0.5 for name in ("eps", "variance_epsilon") if name in vars(norm)})
    found = plain_norm(norm)
    assert found is not None
    torch.testing.assert_close(found._replace(module=None)(h), norm(h))
    assert plain_norm(hooked(norm)) is None


@pytest.mark.parametrize(
    "norm",
    [
        *(nn.LayerNorm(8), nn.LayerNorm(8, bias=False), nn.RMSNorm(8), nn.RMSNorm(8, 1e-3, elementwise_affine=False)),
        *(Written(0.5), Written(extra=0.1), twice(Written()), scaled(Written()), nn.Linear(8, 8), nn.Identity()),
    ],
)
def test_everything_else_is_called(norm):
    assert plain_norm(norm) is None

"""What others ship, written out by hand: the names and shapes of Kimi K3's tensors, and its layer loop."""

from __future__ import annotations

import torch
from torch import Tensor

LAYERS, DIM = 7, 6


def k3_tensors(layers: int, dim: int, prefix: str = "", dtype=torch.float64, device="cpu") -> dict[str, Tensor]:
    """AttnRes' part of a Kimi K3 checkpoint, names and shapes written out by hand."""
    torch.manual_seed(0)
    tensors = {}
    for i in range(layers):
        for site in ("self_attention_res", "mlp_res"):
            tensors[f"{prefix}model.layers.{i}.{site}_norm.weight"] = 1 + 0.3 * torch.randn(dim, device=device)
            tensors[f"{prefix}model.layers.{i}.{site}_proj.weight"] = torch.randn(1, dim, device=device)
    tensors[f"{prefix}model.output_attn_res_norm.weight"] = 1 + 0.3 * torch.randn(dim, device=device)
    tensors[f"{prefix}model.output_attn_res_proj.weight"] = torch.randn(1, dim, device=device)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def k3_config(layers: int, dim: int, block_size: int) -> dict:
    text = {"num_hidden_layers": layers, "hidden_size": dim, "attn_res_block_size": block_size, "rms_norm_eps": 1e-5}
    return {"model_type": "kimi_k3", "text_config": text}


def k3_mix(stored: list[Tensor], prefix_sum: Tensor, norm: Tensor, proj: Tensor) -> Tensor:
    """Keys are divided by their rms, c = norm * proj; softmax and sum in float32 (or wider), one rounding."""
    sources = torch.stack([*stored, prefix_sum]).to(torch.promote_types(prefix_sum.dtype, torch.float32))
    keys = sources / (sources.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    c = norm.to(sources.dtype) * proj[0].to(sources.dtype)
    return ((keys @ c).softmax(0)[..., None] * sources).sum(0).to(prefix_sum.dtype)


def k3_forward(tensors: dict[str, Tensor], layers: int, block_size: int, x: Tensor, sublayers) -> tuple[Tensor, int]:
    """The layer loop of Kimi K3, which counts transformer layers, written from its description. The sublayers read
    the embedding itself in layer 0. Returns the readout and the number of its sources."""

    def mix(site: str, stored: list[Tensor], prefix_sum: Tensor) -> Tensor:
        return k3_mix(stored, prefix_sum, tensors[f"model.{site}_norm.weight"], tensors[f"model.{site}_proj.weight"])

    stored: list[Tensor] = []
    prefix_sum: Tensor | None = x
    for i in range(layers):
        assert prefix_sum is not None
        h = mix(f"layers.{i}.self_attention_res", stored, prefix_sum) if stored else prefix_sum
        if i % block_size == 0:
            stored, prefix_sum = [*stored, prefix_sum], None
        y = sublayers[2 * i](h)
        prefix_sum = y if prefix_sum is None else prefix_sum + y
        prefix_sum = prefix_sum + sublayers[2 * i + 1](mix(f"layers.{i}.mlp_res", stored, prefix_sum))
    assert prefix_sum is not None
    return mix("output_attn_res", stored, prefix_sum), len(stored) + 1


def make_sublayers(count: int, dim: int, dtype=torch.float64):
    matrices = [torch.randn(dim, dim).to(dtype) / dim**0.5 for _ in range(count)]
    return [lambda h, m=m: torch.tanh(h @ m) for m in matrices]

"""The sublayers of Kimi K3's text model, built on transformers' `kimi_linear` where the two agree.

What K3 has beyond Kimi Linear (2510.26692): a full-rank gate and a lower bound of the decay in KDA, a sigmoid gate on
MLA's output, SiTU in place of SwiGLU, and routed experts that work in a latent space. For the trainer
`attnres.model.backbones.borrowed` imports this by its name, on first use.

Shapes: B batch, T time, D hidden size, H heads, Z the experts' latent width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.moe import use_experts_implementation
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnres.connections import Connection, Normed, Values
from attnres.kimi_k3.config import KimiK3Config
from attnres.model.backbones.borrowed import runnable_kernels

with runnable_kernels():
    from transformers.models.kimi_linear.modeling_kimi_linear import (
        KimiLinearAttention,
        KimiLinearDeltaAttention,
        KimiLinearForgetGate,
        KimiLinearRMSNorm,
        KimiLinearTopkRouter,
        eager_attention_forward,
    )


def situ(gate: Tensor, up: Tensor, config: KimiK3Config) -> Tensor:
    """beta tanh(gate / beta) sigmoid(gate) * beta' tanh(up / beta'): SwiGLU with both factors bounded.

    beta is `activation_situ_beta`, beta' `activation_situ_linear_beta`.
    """
    beta, linear = config.activation_situ_beta, config.activation_situ_linear_beta
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * (linear * torch.tanh(up / linear))


class KimiK3ForgetGate(KimiLinearForgetGate):
    """log decay = bound * sigmoid(exp(A_log) (f_b f_a x + dt_bias)), [B, T, H, head]; A_log [H]."""

    def __init__(self, config: KimiK3Config) -> None:
        super().__init__(config)
        self.lower_bound = config.linear_gate_lower_bound
        self.A_log = nn.Parameter(torch.empty(self.num_heads))

    def forward(self, hidden_states: Tensor) -> Tensor:
        raw = self.f_b_proj(self.f_a_proj(hidden_states)).float() + self.dt_bias.float()
        raw = raw.unflatten(-1, (self.num_heads, self.head_dim))
        return self.lower_bound * torch.sigmoid(self.A_log.float().exp()[:, None] * raw)


class KimiK3DeltaAttention(KimiLinearDeltaAttention):
    """Kimi Delta Attention whose output gate is one full-rank matrix."""

    def __init__(self, config: KimiK3Config, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.activation = "silu"  # of the short convolutions; the config's hidden_act is the MLP's
        self.forget_gate = KimiK3ForgetGate(config)
        del self._modules["g_a_proj"], self._modules["g_b_proj"]
        self.g_proj = nn.Linear(config.hidden_size, self.qkv_dim, bias=False)

    # The forward that we inherit gates with g_b_proj(g_a_proj(x)).

    @property
    def g_a_proj(self) -> nn.Module:
        return self.g_proj

    @property
    def g_b_proj(self) -> Any:
        return lambda gate: gate


class KimiK3Attention(KimiLinearAttention):
    """MLA without rotary positions, its output gated: o_proj(y * sigmoid(g_proj x))."""

    q_proj: Any  # None where queries come from a latent space, and else the next three are
    q_a_proj: Any
    q_a_layernorm: Any
    q_b_proj: Any
    v_head_dim: int

    def __init__(self, config: KimiK3Config, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.g_proj = nn.Linear(config.hidden_size, self.num_heads * self.v_head_dim, bias=False)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, cache: Any = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        queries = self._queries(hidden_states).unflatten(-1, (self.num_heads, self.qk_head_dim)).transpose(1, 2)
        latent, shared = self.kv_a_proj_with_mqa(hidden_states).split([self.kv_lora_rank, self.qk_rope_head_dim], -1)
        latent, shared = self.kv_a_layernorm(latent)[:, None], shared[:, None]
        if cache is not None:
            latent, shared = cache.update(latent, shared, self.layer_idx)
        keys, values = self.expand_kv(latent, shared)
        implementation: Any = self.config._attn_implementation
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        dropout = self.attention_dropout if self.training else 0.0
        y, weights = attend(
            self, queries, keys, values, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        return self.o_proj(y.flatten(-2) * torch.sigmoid(self.g_proj(hidden_states))), weights

    def _queries(self, x: Tensor) -> Tensor:
        return self.q_proj(x) if self.q_proj is not None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))


class KimiK3MLP(nn.Module):
    """y = down situ(gate x, up x)."""

    def __init__(self, config: KimiK3Config, width: int) -> None:
        super().__init__()
        self.config = config
        self.gate_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(situ(self.gate_proj(x), self.up_proj(x), self.config))


@use_experts_implementation
class KimiK3Experts(nn.Module):
    """The routed experts of a layer, stacked: gate and up [experts, 2 width, Z], down [experts, Z, width]."""

    def __init__(self, config: KimiK3Config) -> None:
        super().__init__()
        self.config = config
        self.num_experts = config.num_local_experts
        latent, width = config.routed_expert_hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * width, latent))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, latent, width))

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return situ(gate, up, self.config)

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """x [tokens, Z], experts and weights [tokens, experts per token] -> [tokens, Z]."""
        y = torch.zeros_like(x)
        for expert in range(self.num_experts):
            tokens, slots = torch.where(experts == expert)
            if tokens.numel():
                hidden = self._apply_gate(F.linear(x[tokens], self.gate_up_proj[expert]))
                out = F.linear(hidden, self.down_proj[expert]) * weights[tokens, slots, None]
                y = y.index_add(0, tokens, out.to(y.dtype))
        return y


class KimiK3MoE(nn.Module):
    """y = up norm(sum_e p_e expert_e(down x)) + shared(x), p from a sigmoid router that reads x itself."""

    def __init__(self, config: KimiK3Config) -> None:
        super().__init__()
        latent = config.routed_expert_hidden_size
        self.gate = KimiLinearTopkRouter(config)
        self.experts = KimiK3Experts(config)
        self.routed_expert_down_proj = nn.Linear(config.hidden_size, latent, bias=False)
        self.routed_expert_norm = KimiLinearRMSNorm(latent, config.rms_norm_eps)
        self.routed_expert_up_proj = nn.Linear(latent, config.hidden_size, bias=False)
        self.shared_experts = KimiK3MLP(config, config.moe_intermediate_size * config.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        _, weights, experts = self.gate(x)
        latent = self.routed_expert_down_proj(x)
        routed = self.experts(latent.flatten(0, -2), experts, weights).view_as(latent)
        return self.routed_expert_up_proj(self.routed_expert_norm(routed)) + self.shared_experts(x)


class KimiK3DecoderLayer(GradientCheckpointingLayer):
    """Pre-norm attention and pre-norm MLP, which a connection joins."""

    def __init__(self, config: KimiK3Config, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.is_linear = config.layer_types[layer_idx] == "linear_attention"  # type: ignore[index]
        self.self_attn = (KimiK3DeltaAttention if self.is_linear else KimiK3Attention)(config, layer_idx)
        sparse = config.mlp_layer_types[layer_idx] == "sparse"  # type: ignore[index]
        self.mlp = KimiK3MoE(config) if sparse else KimiK3MLP(config, config.intermediate_size)
        self.input_layernorm = KimiLinearRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = KimiLinearRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        *values: Tensor,
        connection: Connection,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Values:
        """Carry what depth holds before this layer, values of the connection, over its two sublayers."""

        def attention(x: Tensor) -> Tensor:
            if self.is_linear:
                return self.self_attn(x, cache=cache, attention_mask=attention_mask, **kwargs)
            return self.self_attn(x, attention_mask, cache, **kwargs)[0]

        sublayers = [
            Normed.after(self.input_layernorm, attention),
            Normed.after(self.post_attention_layernorm, self.mlp),
        ]
        return connection.run(values, sublayers, 2 * self.layer_idx)

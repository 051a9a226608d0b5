"""A small Kimi K3 with weights that hide nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers.models.kimi_linear", reason="transformers 5.24 has what Kimi K3 is built on")

from attnres.kimi_k3 import KimiK3Config, KimiK3ForCausalLM

SIZES: dict[str, Any] = {
    **{"vocab_size": 256, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 6},
    **{"num_attention_heads": 2, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24},
    **{"q_lora_rank": 16, "linear_num_heads": 2, "linear_head_dim": 16, "attn_res_block_size": 2},
    **{"num_local_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 32},
    **{"routed_expert_hidden_size": 32, "routed_scaling_factor": 1.7, "rms_norm_eps": 1e-6},
    **{"max_position_embeddings": 512, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
}


def small_k3(seed: int = 0, **sizes: Any) -> KimiK3ForCausalLM:
    """Gains that are not one, biases that are not zero, queries that prefer some sources."""
    torch.manual_seed(seed)
    model = KimiK3ForCausalLM(KimiK3Config(**{**SIZES, **sizes})).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "connection.query" in name:
                tensor.normal_(std=0.3)
            elif "norm" in name or "connection.gain" in name:
                tensor.uniform_(0.5, 1.5)
            elif tensor.ndim == 1:  # A_log, dt_bias, the router's bias
                tensor.normal_(std=0.3)
            else:
                tensor.normal_(std=0.7 * tensor.shape[-1] ** -0.5)
    return model


def some_tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(seed))


def decided_tokens(model: KimiK3ForCausalLM, count: int, drawn: int) -> torch.Tensor:
    """Tokens of which, with as many drawn behind them, no router is near a tie: there rounding chooses the experts."""
    for seed in range(1, 10):
        tokens = some_tokens(count, seed=seed)
        if _nearest_tie(model, model.generate(tokens[None], max_new_tokens=drawn, do_sample=False)) > 1e-5:
            return tokens
    raise AssertionError("every text has a tie")


def _nearest_tie(model: KimiK3ForCausalLM, tokens: torch.Tensor) -> float:
    """How far the last expert that is chosen lies before the first that is not, over all routers and tokens."""
    gaps = []

    def look(router, _, out):
        scores = (out[0].sigmoid() + router.e_score_correction_bias).sort(-1, descending=True).values
        gaps.append((scores[:, router.top_k - 1] - scores[:, router.top_k]).min().item())

    routers = [part for part in model.modules() if type(part).__name__ == "KimiLinearTopkRouter"]
    hooks = [router.register_forward_hook(look) for router in routers]
    model(tokens)
    for hook in hooks:
        hook.remove()
    assert len(gaps) == len(routers) > 0
    return min(gaps)

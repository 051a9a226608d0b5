"""A small Kimi K3: KDA and gated MLA 3:1, latent mixtures of experts, SiTU, Block Attention Residuals layer by layer.

It goes the whole way to a chat in llama.cpp, which runs no other model with attention over depth: docs/serve.md.
(pip install 'attnres[hf]'.)

    attnres train --recipe recipes/kimi_k3.py
    attnres train --recipe recipes/kimi_k3.py --model.connection block:block_size=4

Seen: validation loss 0.37 nats per token, from 6.55, on the dialogues of docs/serve.md after 300 steps (seed 0; torch
2.13.0, transformers 5.23.0, one CPU thread, 2026-11-21).
"""

from attnres import TransformerConfig
from attnres.train import OptimizerConfig, RunConfig

config = RunConfig(
    model=TransformerConfig(
        backbone="kimi_k3",
        dim=128,
        layers=4,
        heads=2,
        hidden=256,
        context=128,
        connection="block:block_size=2",
        backbone_options={
            "linear_num_heads": 2,
            "linear_head_dim": 32,
            "q_lora_rank": None,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 8,
            "v_head_dim": 32,
            # The first layer's MLP is dense, as in the published model.
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 96,
            "routed_expert_hidden_size": 64,
        },
    ),
    optimizer=OptimizerConfig(lr=1e-2, adamw_lr=3e-3),
    steps=300,
    batch_size=4,
    evaluate_every=100,
    validation_tokens=4096,
)

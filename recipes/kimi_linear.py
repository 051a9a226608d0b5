"""A small Kimi Linear, the paper's backbone: KDA and MLA 3:1, mixtures of experts, Block Attention Residuals.

The sublayers are transformers' `kimi_linear` (pip install 'attnres[hf]'); nothing in them knows of the connection.

    attnres train --recipe recipes/kimi_linear.py
    attnres train --recipe recipes/kimi_linear.py --model.connection residual
    attnres train --recipe recipes/kimi_linear.py --model.connection full
    attnres compare residual block full --recipe recipes/kimi_linear.py

Seen: validation loss 2.195 (block), 2.174 (residual) and 2.173 (full) nats per byte after 100 steps with
--data.dataset stdlib (seed 0; Python 3.11.7's library, torch 2.13.0, transformers 5.23.0, one CPU thread, 2026-11-20).
That is one seed of 51,200 tokens: it shows that everything runs, and not which connection is better.
"""

from attnres import TransformerConfig
from attnres.train import OptimizerConfig, RunConfig

KDA, MLA = "linear_attention", "full_attention"

config = RunConfig(
    model=TransformerConfig(
        backbone="kimi_linear",
        dim=64,
        layers=8,
        heads=2,
        context=128,
        connection="block:block_size=4",
        norm_eps=1e-5,
        backbone_options={
            "layer_types": (KDA, KDA, KDA, MLA) * 2,
            "linear_num_heads": 2,
            "linear_head_dim": 32,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 8,
            "v_head_dim": 32,
            # The first layer's MLP is dense, as in the paper's model.
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
        },
    ),
    optimizer=OptimizerConfig(lr=1e-2, adamw_lr=3e-3),
    steps=100,
    batch_size=4,
    evaluate_every=25,
    validation_tokens=8192,
)

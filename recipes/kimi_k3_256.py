"""A Kimi K3 of width 256, the narrowest that llama.cpp's types of 4 bits with a k fit: docs/serve.md quantises it.

(pip install 'attnres[hf]'.)

    attnres train --recipe recipes/kimi_k3_256.py
"""

from attnres import TransformerConfig
from attnres.train import OptimizerConfig, RunConfig

config = RunConfig(
    model=TransformerConfig(
        backbone="kimi_k3",
        dim=256,
        layers=2,
        heads=4,
        hidden=512,
        context=128,
        connection="block:block_size=2",
        backbone_options={
            "linear_num_heads": 4,
            "linear_head_dim": 64,
            "q_lora_rank": None,
            "kv_lora_rank": 256,
            "qk_nope_head_dim": 48,
            "qk_rope_head_dim": 16,
            "v_head_dim": 64,
            # The first layer is KDA with a dense MLP, the second gated MLA with experts.
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 256,
            "routed_expert_hidden_size": 256,
        },
    ),
    optimizer=OptimizerConfig(lr=1e-2, adamw_lr=3e-3),
    steps=120,
    batch_size=4,
    evaluate_every=30,
    save_every=30,
    validation_tokens=2048,
)

"""The five sizes of the paper's scaling laws: Kimi Linear with about eight blocks (2603.15031, Table 2).

The table gives layers, heads, width, width of an expert, tokens, learning rate and batch, all at a context of 8192. It
does not give the rest, which is taken from the 48B model: KDA and MLA with heads of 128 channels, 8 of 256 routed
experts and a shared one, a dense MLP of nine experts' width in the first layer. Activated parameters without embedding
and head are then 1.0 to 1.7% below the table's (tests/recipes).
"""

from __future__ import annotations

from dataclasses import replace

from attnres import TransformerConfig
from attnres.train import OptimizerConfig, RunConfig

KDA, MLA = "linear_attention", "full_attention"
MICRO_BATCH = 8

# activated parameters: tokens, layers, heads, dim, width of an expert, learning rate, sequences in a batch
TABLE = {
    "194M": (38.7e9, 12, 12, 896, 400, 2.99e-3, 192),
    "241M": (45.4e9, 13, 13, 960, 432, 2.80e-3, 256),
    "296M": (62.1e9, 14, 14, 1024, 464, 2.50e-3, 320),
    "436M": (87.9e9, 16, 16, 1168, 528, 2.20e-3, 384),
    "528M": (119.0e9, 17, 17, 1264, 560, 2.02e-3, 432),
}


def kimi_linear(
    layers: int, heads: int, dim: int, expert: int, mla: tuple[int, ...], context: int
) -> TransformerConfig:
    """Kimi Linear with MLA in the layers `mla` (counted from 1, as the checkpoint does) and KDA in the others."""
    return TransformerConfig(
        vocab_size=163_840,
        backbone="kimi_linear",
        dim=dim,
        layers=layers,
        heads=heads,
        hidden=9 * expert,
        context=context,
        embedding_std=0.02,
        norm_eps=1e-5,
        backbone_options={
            "layer_types": tuple(MLA if layer in mla else KDA for layer in range(1, layers + 1)),
            "linear_num_heads": heads,
            "linear_head_dim": 128,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": expert,
        },
    )


def scaling_run(size: str) -> RunConfig:
    """One row of the table. Give it data: --data.dataset, --data.tokenizer."""
    tokens, layers, heads, dim, expert, lr, batch = TABLE[size]
    mla = (*range(4, layers, 4), layers)  # 3:1, and the last layer, as in the 48B model
    context = 8192
    block_size = round(2 * layers / 8)
    return RunConfig(
        model=replace(
            kimi_linear(layers, heads, dim, expert, mla, context),
            connection=f"block:block_size={block_size}",
        ),
        optimizer=OptimizerConfig(lr=lr, adamw_lr=lr),
        steps=round(tokens / (batch * context)),
        batch_size=MICRO_BATCH,
        accumulate=batch // MICRO_BATCH,
        precision="bfloat16",
        checkpointing=True,
        evaluate_every=500,
        save_every=500,
        validation_tokens=2**22,
    )

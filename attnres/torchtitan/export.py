"""Export a torchtitan checkpoint as a Hugging Face model with its connection, for `attnres.hf.load` and `attnres eval`.

python -m attnres.torchtitan.export outputs/checkpoint/step-1000 models/mine --config llama3_block_1b
"""

from __future__ import annotations

import argparse
import shutil
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load

from attnres.errors import UsageError, first_line
from attnres.files import added_folder
from attnres.hf.attach import attach_as_written

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
"""What of a tokenizer may lie in torchtitan's assets."""


def export(checkpoint: Path, target: Path, config: Any) -> None:
    """Write a checkpoint's model as an attached Hugging Face model, whole or not at all.

    Args:
        checkpoint: a step's folder, in torchtitan's own format.
        target: a folder that does not exist yet.
        config: the `Trainer.Config` that the run had. A tokenizer in its `hf_assets_path` comes along.

    Raises:
        UsageError: the checkpoint is not one of that model, `target` is there already, or a mixture of experts.
    """
    if target.exists():
        raise UsageError(f"{target} is there already; give a folder that is not")
    spec = config.model_spec
    if any(block.moe is not None for block in spec.model.layers):
        raise UsageError("torchtitan gives a router a bias for which transformers' Qwen 3 has no place; train it dense")
    with torch.device("meta"):
        state = spec.model.build().state_dict()
    state = {name: torch.empty_like(tensor, device="cpu") for name, tensor in state.items()}
    try:
        with warnings.catch_warnings(action="ignore"):  # that one process loads it
            load(state, checkpoint_id=checkpoint, no_dist=True)
    except Exception as error:
        raise UsageError(f"{checkpoint} is no checkpoint of a {spec.name} {spec.flavor}: {first_line(error)}") from None
    model = transformers_model(spec.model)
    named = spec.state_dict_adapter(spec.model, None).to_hf(state)
    missing, surplus = model.load_state_dict(named, strict=False)
    if surplus or set(missing) - {"lm_head.weight"}:
        raise UsageError(f"{checkpoint}: transformers has no place for {surplus}, and none for its {missing}")
    model.tie_weights()
    with added_folder(target) as partial:
        model.save_pretrained(partial)
        for file in (Path(config.hf_assets_path) / name for name in TOKENIZER):
            if file.is_file():
                shutil.copy(file, partial)


def transformers_model(config: Any) -> Any:
    """Make the attached Hugging Face model that a dense `model_registry`'s model is, with weights of its own."""
    import transformers

    block = config.layers[0]
    attention, rope = block.attention, block.attention.rope
    heads = attention.n_heads
    settings = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": block.feed_forward.w1.out_features,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": heads,
        "num_key_value_heads": attention.n_kv_heads or heads,
        "head_dim": attention.head_dim or config.dim // heads,
        "rms_norm_eps": config.norm.eps,
        "max_position_embeddings": rope.max_seq_len,
        "tie_word_embeddings": config.enable_weight_tying,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope.theta},
    }
    if rope.scaling == "llama":
        settings["rope_parameters"] = {
            "rope_type": "llama3",
            "rope_theta": rope.theta,
            "factor": rope.scaling_factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position_embeddings,
        }
    family = "Qwen3" if getattr(attention, "qk_norm", None) is not None else "Llama"
    made = getattr(transformers, f"{family}Config")(**settings)
    return attach_as_written(getattr(transformers, f"{family}ForCausalLM")(made), config.connection)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m attnres.torchtitan.export", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("checkpoint", type=Path, help="a step's folder of torchtitan's checkpoint")
    parser.add_argument("target", type=Path, help="the folder to write")
    parser.add_argument("--module", default="attnres.torchtitan", help="as given to torchtitan")
    parser.add_argument("--config", required=True, help="as given to torchtitan: llama3_block_1b")
    given = parser.parse_args(argv)
    try:
        registry = import_module(f"{given.module}.config_registry")
        config = getattr(registry, given.config)()
        export(given.checkpoint, given.target, config)
    except (UsageError, AttributeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{given.target}: attnres.hf.load reads it, and: attnres eval {given.target} --tasks ..")
    if not any((given.target / name).exists() for name in TOKENIZER):
        print(f"attnres eval needs the tokenizer beside it, and there was none in {config.hf_assets_path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

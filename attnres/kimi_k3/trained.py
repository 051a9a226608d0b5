"""A model of the lab's trainer, as a Hugging Face model."""

from __future__ import annotations

from typing import Any

import torch

from attnres.connections.rules.block import AttnResOptions, Block
from attnres.connections.rules.residual import Residual
from attnres.errors import UsageError
from attnres.kimi_k3.model import KimiK3ForCausalLM
from attnres.model import Transformer
from attnres.model.backbones.borrowed import transformers_config
from attnres.model.init import HEAD_STD

BACKBONE = "kimi_k3"


def from_transformer(model: Transformer, end_token: int | None = None) -> KimiK3ForCausalLM:
    """Make a `KimiK3ForCausalLM` with a copy of the lab model's weights, equal to it in every logit.

    end_token: the id that ends a text, for the configuration.

    Raises UsageError where the backbone is another, or the connection one that Kimi K3 does not have.
    """
    config = model.config
    if config.backbone != BACKBONE:
        raise UsageError(f"backbone {config.backbone} is not Kimi K3's; train with --model.backbone {BACKBONE}")
    theirs = transformers_config(config)
    theirs.attn_res_block_size = block_size_of(model.connection, config.norm_eps)
    theirs.eos_token_id = end_token
    theirs.tie_word_embeddings = False  # a tied head is the embedding times a number, so it goes out as its own
    with torch.device("meta"):
        made = KimiK3ForCausalLM(theirs)
    copies = {name: tensor.clone() for name, tensor in _renamed(model)}
    made.load_state_dict(copies, assign=True)  # strict: no weight is left over on either side
    return made.eval()


def block_size_of(connection: Any, eps: float) -> int | None:
    """Return the transformer layers in a block, None for the plain residual.

    Raises UsageError for what Kimi K3, and with it llama.cpp, cannot express.
    """
    if type(connection) is Residual:
        return None
    if type(connection) is not Block or connection.block_size % 2 or connection.options != AttnResOptions(eps=eps):
        raise UsageError(
            f"Kimi K3 has residual, and block with an even block_size, the norms' eps={eps:g} and no other option; "
            f"this connection is {connection.signature}"
        )
    return connection.block_size // 2


def _renamed(model: Transformer) -> Any:
    """The lab's weights under the names of `KimiK3ForCausalLM`."""
    places = {"block": ("self_attn", "mlp"), "norm": ("input_layernorm", "post_attention_layernorm")}
    for name, tensor in model.state_dict().items():
        top, *rest = name.split(".")
        if top == "sublayers":
            site, part, *rest = rest
            layer, half = divmod(int(site), 2)
            yield ".".join(["model", "layers", str(layer), places[part][half], *rest]), tensor
        elif top in ("connection", "norm"):
            yield f"model.{name}", tensor
        elif top == "embedding":
            yield "model.embed_tokens.weight", tensor
            if model.head is None:
                # What `Transformer.logits` makes of a tied embedding.
                yield "lm_head.weight", tensor * (HEAD_STD / model.config.embedding_std)
        elif top == "head":
            yield "lm_head.weight", tensor

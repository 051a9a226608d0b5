"""Give a Hugging Face decoder a connection, in place. layer.py runs it; classes.py has the classes of the result."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from attnres.connections import Connection, canonical_connection, saved_connection
from attnres.connections.offload import device_of
from attnres.connections.start import difference_at_start, with_exact_start
from attnres.errors import UsageError
from attnres.hf.classes import become_attached, install
from attnres.hf.decoder import Anatomy, decoder_of, fitting_connection, no_model, read_anatomy
from attnres.hf.layer import CONNECTION

log = logging.getLogger("attnres")


def attach(model: Any, connection: str = "block", **options: Any) -> Any:
    """Replace the residual connection of a Hugging Face model, in place, and return the model.

    The connection becomes a part of the model, `connection_of(model)`. Its parameters are trained, saved by
    `save_pretrained` and restored by `attnres.hf.load`; they are float32 in a model of any dtype.

    Args:
        model: a causal language model of Transformers, or its base model; the configuration is changed in place. Pass
            the whole model if it has a text model inside, as vision models do, or it is not saved as attached.
        connection: as for `make_connection`, such as "block" or "block:block_size=8".
        **options: options of the connection. `total=True` and `gate=True` are added if it has these options, so that
            the logits are unchanged up to rounding. A connection that cannot start like this is attached with a
            warning.

    Raises:
        UsageError: the model's layers cannot be read or share weights, the model is quantised or has a connection, or
            the connection or an option does not fit. The model is unchanged then.
    """
    options = with_exact_start(connection, options)
    return attach_as_written(model, canonical_connection(connection, **options))


def attach_as_written(model: Any, connection: str) -> Any:
    """Do what `attach` does, with no option that is not written."""
    anatomy = examine(model)
    connection = saved_connection(connection, anatomy.sublayers)
    made = fitting_connection(connection, anatomy.dim, anatomy.sublayers)
    device = device_of(anatomy.layers[0])
    if device.type == "meta" or any(parameter.is_meta for parameter in made.parameters()):
        raise UsageError("the model has no weights yet; attach to it when they are loaded, outside init_empty_weights")
    if differs := difference_at_start(made):
        log.warning(
            "%s does not start as the plain residual (%s): the model's outputs change until it is trained",
            connection,
            differs,
        )
    if any(code.changes for code in anatomy.codes):
        log.warning(
            "the layers of %s do more to their stream than add to it, as post-norm ones do: "
            "what the connection mixes is what each sublayer changes (docs/transformers.md)",
            model.config.model_type,
        )
    install(anatomy, made.to(device))
    become_attached(model, connection)
    return model


def connection_of(model: Any) -> Connection:
    """Return the connection of an attached model. Raises UsageError if it has none."""
    connection = getattr(decoder_of(model), CONNECTION, None)
    if connection is None:
        raise UsageError("the model has no connection; call attnres.hf.attach(model, ...) first")
    return connection


def examine(model: Any) -> Anatomy:
    """Find the parts of a model, changing nothing. Raises UsageError for what cannot have a connection."""
    config = decoder_of(model) and model.config
    if hasattr(decoder_of(model), CONNECTION):
        raise UsageError("the model already has a connection; start from the plain checkpoint")
    if not isinstance(model, PreTrainedModel):  # PEFT's and torch.compile's wrappers pass on what they are asked for
        raise no_model(model)
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{config.model_type} is an encoder-decoder; attach takes decoders only")
    if getattr(model, "hf_quantizer", None) or getattr(config, "quantization_config", None):
        raise UsageError("the model's weights are quantised; attach to the unquantised checkpoint")
    anatomy = read_anatomy(model)
    _refuse_sharing(anatomy.layers)
    return anatomy


def _refuse_sharing(layers: Sequence[nn.Module]) -> None:
    owner: dict[int, int] = {}
    for index, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            other = owner.setdefault(id(parameter), index)
            if other != index:
                raise UsageError(f"layers {other} and {index} share {name}; a connection needs a layer for every site")

"""What an attached model is to Transformers: classes, a model type and a file of code, so that its folder loads.

An attached LlamaForCausalLM is an `AttnResLlamaForCausalLM` whose configuration is an `AttnResLlamaConfig`. These
classes are made of transformers' own when they are first asked for, here: `classes.AttnResLlamaForCausalLM`. What
`save_pretrained` writes is loaded

- by the Auto class of its head (AUTO_CLASSES) with trust_remote_code=True, through a file in the folder that imports
  this module;
- by that class alone after `import attnres.hf`, which registers the model type;
- by nothing else: without these an Auto class does not know the model type, and with the plain model's own class
  `GUARD` raises an error.

On disk the model type is "attnres". In memory a configuration has the plain model's, by which transformers chooses
tokenizers, the conversion of checkpoints and more.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

from attnres.connections import Connection, mean_read
from attnres.connections.offload import at_hand
from attnres.errors import UsageError
from attnres.files import write_text
from attnres.hf.decoder import Anatomy, decoder_of, fitting_connection, read_anatomy, runs_layers
from attnres.hf.folder import refuse_names
from attnres.hf.layer import (
    CONNECTION,
    Depth,
    Stack,
    Wide,
    attached_class,
    attached_layers,
    become_layer,
    change_class,
)
from attnres.hf.record import RECORD, file_of, read_record, recorded_connection, written_record
from attnres.hf.several import give_reads
from attnres.model.backbones.borrowed import runnable_kernels

PREFIX = "AttnRes"
MODEL_TYPE = "attnres"

GUARD = "transformers_weights"
"""The entry of config.json by which transformers finds the weights. Ours names no file, so that the plain model's own
class, which would pass over the connection's tensors, stops with the entry's text."""

UNSAVED = "an attached model that was not saved"
"""A model's path until it is saved and loaded. Nothing can be loaded from it."""

AUTO_CLASSES = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
    "AutoModelForImageTextToText",
    "AutoModelForMaskedLM",
    "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
)

CODE_FILE = "modeling_attnres.py"
CODE = '''"""The classes of this folder's model, a {plain} with a residual connection of attnres."""

try:
    from attnres.hf.classes import {names}
except ModuleNotFoundError:
    raise ImportError("this model needs the Python package attnres, which is not installed here") from None
'''
RUN_FILE = """
from attnres.connections import connection_class

connection_class({connection!r})
"""
"""What CODE has below it where the connection is written FILE.py:CLASS. transformers runs it where the folder is
trusted, and attnres.hf is not imported."""


class AttnResConfig(PreTrainedConfig):
    """The configuration of an attached model of any kind, as config.json has it."""

    model_type = MODEL_TYPE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration of the kind that the record names. Raises UsageError where it names none."""
        record = config_dict.get(RECORD)
        plain = str(record.get("plain")) if isinstance(record, Mapping) else ""
        if plain not in CONFIG_MAPPING:
            raise UsageError(f"config.json: transformers {transformers.__version__} has no model type {plain!r}")
        return registered_config_class(CONFIG_MAPPING[plain]).from_dict(config_dict, **kwargs)


class Config:
    """What the configuration of an attached model adds to the plain one's."""

    plain: Any
    """The plain model's class of configuration."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make the configuration of a dictionary, such as config.json holds. Raises UsageError without a connection."""
        entries = {name: value for name, value in config_dict.items() if name != GUARD}
        entries |= {"model_type": cls.plain.model_type, RECORD: {**read_record(entries), "plain": cls.plain.model_type}}
        return super().from_dict(entries, **kwargs)  # type: ignore[misc]

    @classmethod
    def record(cls, connection: str) -> dict[str, str]:
        return {"connection": connection, "plain": cls.plain.model_type}

    def to_json_file(self, json_file_path: Any, use_diff: bool = True) -> None:
        """Write config.json, and next to it the code that it names."""
        config: Any = self
        config.auto_map = auto_map(self.plain)
        entries = config.to_diff_dict() if use_diff else config.to_dict()
        entries[RECORD] = written_record(config.attnres)
        entries[GUARD] = (
            f"this is no plain {self.plain.model_type}: load it with attnres.hf.load, or by one of transformers' Auto "
            "classes with trust_remote_code=True or behind import attnres.hf"
        )
        path = Path(json_file_path)
        write_text(path, json.dumps(entries, indent=2, sort_keys=True) + "\n")
        names = {PREFIX + self.plain.__name__, *(name.partition(".")[2] for name in config.auto_map.values())}
        code = CODE.format(plain=self.plain.model_type, names=", ".join(sorted(names)))
        # All that config.json said and the code repeats is this, as a literal: whoever trusts the folder runs the code.
        connection = config.attnres["connection"]
        write_text(
            path.parent / CODE_FILE, code + (RUN_FILE.format(connection=connection) if file_of(connection) else "")
        )

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Do nothing: transformers would copy this module into the folders that it saves."""


class Model:
    """What a class of transformers' models becomes, made of its configuration with the connection in its decoder."""

    def __init__(self, config: Any, *inputs: Any, **kwargs: Any) -> None:
        connection = recorded_connection(vars(config))
        super().__init__(config, *inputs, **kwargs)  # pyright: ignore[reportCallIssue]
        if hasattr(decoder_of(self), CONNECTION):
            return  # transformers' generic heads make their base model by AutoModel, of this attached configuration
        anatomy = read_anatomy(self)
        made = fitting_connection(connection, anatomy.dim, anatomy.sublayers)
        install(anatomy, made.to(next(anatomy.layers[0].parameters()).device))

    @classmethod
    def from_pretrained(cls, path: Any, *inputs: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load as transformers does, and raise UsageError where the connection's tensors are not those of config.json.

        Its auto classes hand over the configuration that they have read, and trust_remote_code: with that, the file of
        a connection FILE.py:CLASS is run.
        """
        if isinstance(config := kwargs.get("config"), Config):
            for name in (name.removeprefix(PREFIX) for name in getattr(config, "architectures", None) or ()):
                if plain_class(name) is None:
                    raise UsageError(
                        f"{path}: the model is a {name}, which transformers does not know; "
                        "register it (AutoConfig.register, AutoModelForCausalLM.register)"
                    )
            if kwargs.get("trust_remote_code"):
                recorded_connection(vars(config), trusted=True)
        model, info = super().from_pretrained(path, *inputs, output_loading_info=True, **kwargs)  # type: ignore[misc]
        refuse_differences(info, path, of_connection)
        return (model, info) if output_loading_info else model

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, without the tensor that says whose state it is: config.json says so here, and
        vLLM stops at a tensor that is no parameter."""
        model: Any = self
        signatures = {name for name in model.state_dict() if name.endswith(f"{CONNECTION}._extra_state")}
        model._keys_to_ignore_on_save = {*(model._keys_to_ignore_on_save or ()), *signatures}
        super().save_pretrained(*args, **kwargs)  # type: ignore[misc]

    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, Wide):  # a connection's parts start as it made them
            super()._init_weights(module)  # type: ignore[misc]
        elif isinstance(module, Connection):  # loading has emptied what is not in the checkpoint
            for name, buffer in module.anew().named_buffers():
                module.get_buffer(name).copy_(buffer)

    def _get_name(self) -> str:
        """Return the plain class's name: by it Trainer knows which labels to shift when it smooths them."""
        return type(self).__name__.removeprefix(PREFIX)

    @classmethod
    def is_custom_code(cls) -> bool:
        """Return False: all code but the connection's is transformers', its conversions of checkpoints included."""
        return False

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Do nothing: transformers would copy this module into the folders that it saves."""

    @property
    def supports_pp_plan(self) -> bool:
        """Raise UsageError: an engine asks when it is about to cut the model into stages. vLLM would cut it all the
        same after a False, and lose the connection."""
        raise UsageError(
            "an attached model cannot be cut into stages of a pipeline, which hand on hidden states and no more: give "
            "--pipeline-parallel-size 1"
        )


class Decoder(Model):
    """What the class becomes whose forward runs the layers."""

    connection: Connection

    def _with_states_as_read(self, outputs: Any) -> Any:
        """Say what each layer read, where hidden states were asked for."""
        if isinstance(outputs, dict) and outputs.get("hidden_states"):
            sites = [*(layer._first_site for layer in attached_layers(self)), self.connection.sublayers]  # type: ignore[arg-type]
            outputs["hidden_states"] = tuple(map(self._as_read, outputs["hidden_states"], sites))
        return outputs

    def _as_read(self, state: Any, site: int) -> Any:
        """The hidden states at a site: what its sublayer reads, which for the plain residual is the stream."""
        if not isinstance(state, tuple):
            if site:  # behind the final norm
                return state
            state = self.connection.start(state)
        with at_hand(self.connection):
            return mean_read(self.connection.mix(state.values if isinstance(state, Depth) else state, site)[1])


def install(anatomy: Anatomy, connection: Connection) -> None:
    """Put the connection into a plain decoder. Raises UsageError, having changed nothing, where that cannot be."""
    decoder = anatomy.decoder
    plan = []
    for layer, code, first in zip(anatomy.layers, anatomy.codes, anatomy.first_sites, strict=True):
        if connection.per_layer and len(code.pieces) != 2:
            raise UsageError(
                f"{type(connection).__name__} is a rule of transformer layers of two sublayers, attention and MLP, and "
                f"{type(layer).__name__} has {len(code.pieces)}; attach another connection"
            )
        several = [connection.reads(first + which) > 1 for which in range(len(code.pieces))]
        plan.append((layer, first, *give_reads(layer, code, several)))
    for part in list(connection.modules()):
        part.__class__ = attached_class(type(part), Wide)
    decoder.register_module(CONNECTION, connection)
    _change_model_class(decoder)
    stack = Stack(decoder, [])
    for layer, first, code, roles in plan:
        become_layer(layer, stack, code, first, connection.sublayers)
        for name, role in roles.items():
            part = getattr(layer, name)
            change_class(part, attached_class(type(part), role))


def become_attached(model: Any, connection: str) -> None:
    """Give a plain model the class and the configuration of an attached one; `install` does the rest.

    The configuration says no longer where the model came from: trainers would load a reference policy from there.
    """
    plain = model.config
    # A base model shares its configuration with the model around it, by which that is saved as attached, too.
    attached = plain if model.base_model is model else copy.copy(plain)
    attached.__class__ = registered_config_class(type(plain))
    attached.attnres, attached.model_type = attached.record(connection), plain.model_type
    model.name_or_path = attached.name_or_path = UNSAVED
    for part in model.modules():
        if vars(part).get("config") is plain:
            part.config = attached
    _change_model_class(model)


def _change_model_class(model: Any) -> None:
    cls = attached_model_class(type(model))
    PreTrainedModel.__init__(cls.__new__(cls), model.config)  # transformers notes then which outputs cls can record
    change_class(model, cls)


def of_connection(name: str) -> bool:
    """Whether a tensor of this name is a connection's."""
    return f".{CONNECTION}." in f".{name}"


def refuse_differences(info: Mapping[str, Any], path: Any, counts: Any = lambda name: True) -> None:
    """Raise UsageError if loading found a tensor that `counts` missing, surplus or reshaped; all are named."""
    missing, surplus, reshaped = (sorted(info[f"{kind}_keys"]) for kind in ("missing", "unexpected", "mismatched"))
    if any(counts(name) for name in [*missing, *surplus, *(name for name, *_ in reshaped)]):
        refuse_names(f"{path}: its tensors are not those of its config.json", missing, surplus, reshaped)


@functools.cache
def attached_config_class(plain: Any) -> Any:
    """The class of configuration of an attached model."""
    if issubclass(plain, Config):
        return plain
    names = {"__module__": __name__, "model_type": MODEL_TYPE, "base_model_pp_plan": None, "plain": plain}
    return type(PREFIX + plain.__name__, (Config, plain), names)


def registered_config_class(plain: Any) -> Any:
    """The same, known to transformers' auto classes, and its models with it, those that were registered since too."""
    attached = attached_config_class(plain)
    for auto, cls in auto_classes(plain).items():
        made = attached_model_class(cls)
        # Not the auto class's own method: it wants a configuration for each class of models, and internlm3 has llama's.
        getattr(transformers, auto)._model_mapping.register(attached, made, exist_ok=True)
        # Where `transformers serve`, TRL and SGLang look architectures up. Importing transformers.processing_utils puts
        # a second module in sys.modules; who imported transformers before has the first.
        for module in (transformers, sys.modules["transformers"]):
            setattr(module, made.__name__, made)
    if plain in TOKENIZER_MAPPING:
        TOKENIZER_MAPPING.register(attached, TOKENIZER_MAPPING[plain], exist_ok=True)
    return attached


@functools.cache
def attached_model_class(plain: Any) -> Any:
    """The class of an attached model."""
    if issubclass(plain, Model):
        return plain
    names: dict[str, Any] = {
        "__module__": __name__,
        "config_class": attached_config_class(plain.config_class),
        "_keep_in_fp32_modules_strict": {*(plain._keep_in_fp32_modules_strict or ()), CONNECTION},
        # What `save_pretrained` leaves out.
        "_keys_to_ignore_on_load_missing": [
            *(plain._keys_to_ignore_on_load_missing or ()),
            rf"\b{CONNECTION}\._extra_state$",
        ],
    }
    if mapping := get_checkpoint_conversion_mapping(plain.__name__):  # tensors are renamed by the class's name, too
        register_checkpoint_conversion_mapping(PREFIX + plain.__name__, mapping, overwrite=True)
    if not runs_layers(plain):
        return type(PREFIX + plain.__name__, (Model, plain), names)

    @functools.wraps(plain.forward)  # engines read its signature
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._with_states_as_read(plain.forward(self, *args, **kwargs))

    return type(PREFIX + plain.__name__, (Decoder, plain), {**names, "forward": forward})


def _attached(plain: Any) -> Any:
    """The attached class, of a configuration or a model, with all that transformers looks up of it."""
    if issubclass(plain, PreTrainedConfig):
        return registered_config_class(plain)
    registered_config_class(plain.config_class)  # generic heads look their base model up by it
    return attached_model_class(plain)


def auto_map(plain: Any) -> dict[str, str]:
    """config.json's entry that says which class of the folder's code each of transformers' auto classes takes."""
    classes = {"AutoConfig": plain, **auto_classes(plain)}
    return {auto: f"{CODE_FILE.removesuffix('.py')}.{PREFIX}{cls.__name__}" for auto, cls in classes.items()}


def auto_classes(plain: Any) -> dict[str, Any]:
    """The plain model's classes, by the auto class that chooses them."""
    mappings = {auto: getattr(transformers, auto)._model_mapping for auto in AUTO_CLASSES}
    with runnable_kernels():
        return {auto: mapping[plain] for auto, mapping in mappings.items() if plain in mapping}


def plain_class(name: str) -> Any:
    """The configuration or model class of that name, of transformers or registered there; None if there is none."""
    with runnable_kernels():
        if (own := getattr(transformers, name, None)) is not None:
            return own
    mappings = [CONFIG_MAPPING, *(getattr(transformers, auto)._model_mapping for auto in AUTO_CLASSES)]
    registered = (cls for mapping in mappings for cls in mapping._extra_content.values())
    return next((cls for cls in registered if cls.__name__ == name), None)


def __getattr__(name: str) -> Any:
    """The attached class of that name, made of the plain class with the name behind the prefix."""
    if not name.startswith(PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    plain = name.removeprefix(PREFIX)
    if (found := plain_class(plain) or _not_exported(plain)) is None:
        raise AttributeError(f"transformers {transformers.__version__} has no class {plain}")
    return _attached(found)


def _not_exported(name: str) -> Any:
    """A class, such as OPTDecoder, that a pickle names behind the model's own, which has loaded its module."""
    loaded = (vars(module) for path, module in list(sys.modules.items()) if path.startswith("transformers.models."))
    return next((own[name] for own in loaded if name in own), None)


AutoConfig.register(MODEL_TYPE, AttnResConfig, exist_ok=True)

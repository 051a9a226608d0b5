"""Block AttnRes as others ship it: their parameter names, shapes and way of counting blocks (spec.md 11).

A form is a row of a table. `read_connection` makes a connection of a checkpoint's tensors after a strict check,
`write_connection` gives a connection's parameters the form's names, and `read_checkpoint` does the first for a folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attnres.connections import Connection
from attnres.connections.rules.block import Block
from attnres.errors import UsageError
from attnres.hf.folder import read_config, read_tensors, refuse_differences, weight_files


@dataclass(frozen=True)
class Form:
    """How one code base stores Block AttnRes. `{layer}` stands for a transformer layer's number.

    Names stand behind a prefix: `model.` in a causal language model, and more where that is a part of another model.
    """

    attention: str
    """What the names of an attention site's parameters begin with."""
    mlp: str
    """The same of an MLP site."""
    readout: str
    """The same of the readout."""
    query: str
    """How the name of a site's query w ends."""
    query_shape: tuple[int, ...]
    """The query's shape, -1 standing for the width."""
    gain: str | None
    """How the name of a site's key gain g ends; None where keys have no gain."""
    block_size: str
    """The entry of config.json that holds the size of a block."""
    sublayers: int
    """How many sublayers one unit of that size is: 2 where transformer layers are counted."""
    eps: float
    """The eps of the keys' norm, where config.json has no entry for it."""
    eps_entry: str | None
    """The entry of config.json that holds the eps of all norms, these included."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `Block` that the code base's maths amounts to."""
    first_site: bool = True
    """Whether site 0 has parameters. It has one source, so they are never used."""
    kinds: dict[str, int] = field(default_factory=dict)
    """How many mixtures the attention of a layer reads, by its kind in config.json's layer_types, if not always one."""

    def reads(self, layers: int, layer_types: Sequence[str] | None) -> list[int]:
        """How many mixtures each layer's attention reads."""
        if not self.kinds or layer_types is None:
            return [1] * layers
        if len(layer_types) != layers or not {*layer_types} <= {*self.kinds}:
            raise UsageError(f"layer_types must be {layers} of {', '.join(self.kinds)}, not {list(layer_types)}")
        return [self.kinds[kind] for kind in layer_types]

    def sites(self, reads: Sequence[int], dim: int) -> Iterator[tuple[int, str, str | None, list[int]]]:
        """(site, query, gain, the query's shape) for each site that has parameters, by their names."""
        heads = [(head.format(layer=n), count) for n, k in enumerate(reads) for head, count in self._halves(k)]
        shape = [dim if size == -1 else size for size in self.query_shape]
        for site, (head, count) in enumerate([*heads, (self.readout, 1)]):
            if site or self.first_site:
                yield site, head + self.query, self.gain and head + self.gain, [count, *shape] if count > 1 else shape

    def _halves(self, reads: int) -> tuple[tuple[str, int], ...]:
        return (self.attention, reads), (self.mlp, 1)

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the name of every parameter of this form, of any layer, behind any prefix (group 1)."""
        heads = "|".join(re.escape(h).replace(r"\{layer\}", r"\d+") for h in (self.attention, self.mlp, self.readout))
        tails = "|".join(re.escape(tail) for tail in (self.query, self.gain) if tail)
        return re.compile(rf"^((?:.*\.)?)(?:{heads})(?:{tails})$")


PREFIX = "model."
_LINEAR = {"query": "_proj.weight", "query_shape": (1, -1), "gain": "_norm.weight"}  # nn.Linear(dim, 1) and an RMSNorm

FORMS = {
    # 93 transformer layers of width 7168 in blocks of 12.
    "kimi_k3": Form(
        attention="layers.{layer}.self_attention_res",
        mlp="layers.{layer}.mlp_res",
        readout="output_attn_res",
        **_LINEAR,
        block_size="attn_res_block_size",
        sublayers=2,
        eps=1e-5,
        eps_entry="rms_norm_eps",
    ),
    # The models of flash-linear-attention.
    "fla": Form(
        attention="layers.{layer}.attn_res",
        mlp="layers.{layer}.mlp_res",
        readout="res",
        **_LINEAR,
        block_size="attnres_block_size",
        sublayers=1,
        eps=1e-6,
        eps_entry="norm_eps",
    ),
    # transformers' inkling2. Keys have no gain. The attention of its hybrid (not sliding) layers reads three mixtures,
    # for queries, keys and values: reads="qkv", with which sliding layers have the same mixture three times.
    "inkling2": Form(
        attention="layers.{layer}.attention_input",
        mlp="layers.{layer}.mlp_input",
        readout="final_input",
        query=".query",
        query_shape=(-1,),
        gain=None,
        block_size="n_layers_per_attn_res_block",
        sublayers=2,
        eps=1e-6,
        eps_entry=None,
        options={"value_norm": True, "scaled_scores": True},
        first_site=False,
        kinds={"hybrid_sliding": 1, "hybrid": 3},
    ),
}


def read_connection(tensors: Mapping[str, Tensor], form: str, config: Mapping[str, Any]) -> Block:
    """The connection whose parameters are among `tensors`, in the dtype and on the device that they have there.

    Args:
        tensors: a checkpoint's, by name; those that are not of AttnRes are passed over. The prefix of the names, such
            as `language_model.model.`, is found by itself.
        form: a name of `FORMS`.
        config: the content of the model's config.json; a `text_config` inside it counts.

    Raises:
        UsageError: tensors of the form that are missing, surplus or of another shape than the configuration says, each
            by its name; a configuration that says too little.
    """
    layout = _form(form)
    text = config.get("text_config") or config
    layers, dim = _whole(text, "num_hidden_layers"), _whole(text, "hidden_size")
    block_size = layout.sublayers * _whole(text, layout.block_size)
    eps = text.get(layout.eps_entry, layout.eps) if layout.eps_entry else layout.eps

    found = {name: match[1] for name in tensors if (match := layout.pattern.match(name))}
    prefix = _one_prefix(set(found.values()) or {PREFIX}, form)
    reads = layout.reads(layers, text.get("layer_types"))
    shapes = {}
    for _, query, gain, shape in layout.sites(reads, dim):
        shapes |= {prefix + query: shape} | ({prefix + gain: [dim]} if gain else {})
    wrong = f"these are not the AttnRes tensors of {form} with {layers} transformer layers of width {dim}"
    refuse_differences(shapes, {name: tensors[name] for name in found}, wrong)

    options = {**layout.options, "reads": "one" if max(reads) == 1 else "qkv"}
    connection = Block(dim, 2 * layers, block_size, eps=eps, **options)
    for site, query, gain, stored in layout.sites(reads, dim):
        tensor, shape = tensors[prefix + query].detach(), connection.query[site].shape
        repeated = len(shape) > len(stored)
        connection.query[site] = nn.Parameter(tensor.expand(shape).clone() if repeated else tensor.reshape(shape))
        if gain:
            connection.gain[site] = nn.Parameter(tensors[prefix + gain].detach())
    return connection


def write_connection(
    connection: Connection, form: str, layer_types: Sequence[str] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The connection's parameters under the form's names, and the entries that config.json must have for them.

    The inverse of `read_connection`, for a causal language model. A form without key gains stores c = g * w.
    layer_types is that of inkling2's config.json; without it all layers read as many mixtures as the connection. Raises
    UsageError where the form has no place for what the connection does.
    """
    layout = _form(form)
    connection = _expressible(connection, form, layout)
    layers, count = connection.sublayers // 2, connection.reads(0)
    if layer_types is None and layout.kinds:
        layer_types = [kind for kind, reads in layout.kinds.items() if reads == count] * layers
    tensors = {}
    for site, name, gain_name, shape in layout.sites(layout.reads(layers, layer_types), connection.dim):
        query, gain = connection.query[site].detach(), connection.gain[site].detach()
        stored = query if layout.gain else query * gain
        if stored.ndim > len(shape):
            if (stored != stored[0]).any():
                raise UsageError(f"layer {site // 2} has one mixture in form {form}, not {count} of its own")
            stored = stored[0]
        tensors[PREFIX + name] = stored.reshape(shape)
        if gain_name:
            tensors[PREFIX + gain_name] = gain
    entries: dict[str, Any] = {
        "num_hidden_layers": connection.sublayers // 2,
        "hidden_size": connection.dim,
        layout.block_size: connection.block_size // layout.sublayers,
    }
    if layer_types is not None:
        entries["layer_types"] = list(layer_types)
    if layout.eps_entry:
        entries[layout.eps_entry] = connection.options.eps
    return tensors, entries


def read_checkpoint(folder: str | Path, form: str) -> Block:
    """`read_connection` of a folder with config.json and safetensors files; nothing but AttnRes' tensors is read."""
    folder, pattern = Path(folder), _form(form).pattern
    files, config = weight_files(folder), read_config(folder)
    return read_connection(read_tensors(files, pattern.match), form, config)


def _form(name: str) -> Form:
    if name not in FORMS:
        raise UsageError(f"unknown form {name!r}; choose one of: {', '.join(FORMS)}")
    return FORMS[name]


def _whole(config: Mapping[str, Any], entry: str) -> int:
    value = config.get(entry)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        said = "has no entry" if value is None else f"says {value!r} for"
        raise UsageError(f"the model's config.json {said} {entry}; it must be a whole number of at least 1")
    return value


def _one_prefix(prefixes: set[str], form: str) -> str:
    if len(prefixes) > 1:
        both = " and ".join(repr(prefix) for prefix in sorted(prefixes))
        raise UsageError(f"the tensors hold {form} parameters behind several prefixes, {both}; give those of one model")
    return next(iter(prefixes))


def _expressible(connection: Connection, form: str, layout: Form) -> Block:
    if not isinstance(connection, Block):
        raise UsageError(f"form {form} stores Block AttnRes; this connection is a {type(connection).__name__}")
    plain = Block(
        connection.dim, connection.sublayers, connection.block_size, eps=connection.options.eps, **layout.options
    )
    own, theirs = _traits(plain), _traits(connection)
    if connection.reads(0) in layout.kinds.values():
        own["reads"] = theirs["reads"]
    differing = theirs.items() - own.items()
    if differing:
        said = ", ".join(f"{name} is {value!r}" for name, value in sorted(differing))
        raise UsageError(f"form {form} cannot store this connection: {said}")
    if connection.sublayers % 2 or connection.block_size % layout.sublayers:
        raise UsageError(
            f"form {form} has two sublayers in a transformer layer and counts blocks in units of {layout.sublayers}: "
            f"{connection.sublayers} sublayers in blocks of {connection.block_size} do not fit"
        )
    return connection


def _traits(connection: Block) -> dict[str, Any]:
    """Everything that a connection is told, its options and those that a subclass adds."""
    public = {name: value for name, value in vars(connection).items() if not name.startswith(("_", "training", "rate"))}
    options = asdict(public.pop("options"))
    return {**public, **options}

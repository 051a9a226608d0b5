"""Block AttnRes as others ship it: their parameter names, shapes and way of counting blocks (spec.md 11).

A form is a row of a table. `read_connection` makes a connection of a checkpoint's tensors after a strict check,
`write_connection` gives a connection's parameters the form's names, and `read_checkpoint` does the first for a folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

    def names(self, layers: int) -> Sequence[tuple[str, str | None] | None]:
        """(query, gain) for each site 0 .. 2 * layers; None for one that has no parameters."""
        heads = [head.format(layer=layer) for layer in range(layers) for head in (self.attention, self.mlp)]
        names = [(head + self.query, self.gain and head + self.gain) for head in (*heads, self.readout)]
        return names if self.first_site else [None, *names[1:]]

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
    # transformers' inkling2. Keys have no gain. The attention of its hybrid (not sliding) layers reads three mixtures
    # at once, for queries, keys and values, where a connection has one; what has that shape is refused.
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
    sites = layout.names(layers)
    query_shape = [dim if size == -1 else size for size in layout.query_shape]
    shapes = {}
    for query, gain in filter(None, sites):
        shapes[prefix + query] = query_shape
        if gain:
            shapes[prefix + gain] = [dim]
    wrong = f"these are not the AttnRes tensors of {form} with {layers} transformer layers of width {dim}"
    refuse_differences(shapes, {name: tensors[name] for name in found}, wrong)

    connection = Block(dim, 2 * layers, block_size, eps=eps, **layout.options)
    for site, names in enumerate(sites):
        if names:
            query, gain = names
            connection.query[site] = nn.Parameter(tensors[prefix + query].detach().reshape(dim))
            if gain:
                connection.gain[site] = nn.Parameter(tensors[prefix + gain].detach())
    return connection


def write_connection(connection: Connection, form: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The connection's parameters under the form's names, and the entries that config.json must have for them.

    The inverse of `read_connection`, for a causal language model. A form without key gains stores c = g * w. Raises
    UsageError where the form has no place for what the connection does.
    """
    layout = _form(form)
    connection = _expressible(connection, form, layout)
    tensors = {}
    for site, names in enumerate(layout.names(connection.sublayers // 2)):
        if not names:
            continue
        query, gain = connection.query[site].detach(), connection.gain[site].detach()
        tensors[PREFIX + names[0]] = (query if layout.gain else query * gain).reshape(layout.query_shape)
        if names[1]:
            tensors[PREFIX + names[1]] = gain
    entries: dict[str, Any] = {
        "num_hidden_layers": connection.sublayers // 2,
        "hidden_size": connection.dim,
        layout.block_size: connection.block_size // layout.sublayers,
    }
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
    public = {name: value for name, value in vars(connection).items() if not name.startswith(("_", "training"))}
    options = asdict(public.pop("options"))
    return {**public, **options}

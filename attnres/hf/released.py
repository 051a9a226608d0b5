"""Any model's depth: transformers' own models as the connections that they were trained with.

A model of transformers is unrolled without being changed. A reader per model type makes the connection of the model's
own parameters and names the modules of each sublayer. One pass over the tokens records what else these modules are
called with (masks, positions); a sublayer is then a function of h alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.connections import Connection, Sublayer, Unrolled, Values, Weights, make_connection
from attnres.connections.matrix import READERS
from attnres.connections.streams import Streams
from attnres.errors import UsageError
from attnres.hf.decoder import decoder_of, norm_of, read_anatomy
from attnres.hf.layer import CONNECTION, bind, run_whole
from attnres.hf.layer import unroll as unroll_attached
from attnres.ops import inverse_rms, widen

Again = Callable[[nn.Module], Sublayer]
"""module -> a function of its input that calls it with whatever else it was called with before."""


class Depth(NamedTuple):
    """How a decoder carries information through depth."""

    connection: Connection
    sublayers: list[Sublayer]
    norm: nn.Module
    """What follows the readout, before the head."""


@torch.no_grad()
def unroll(model: Any, tokens: Tensor, **inputs: Any) -> Unrolled:
    """Unroll a model of transformers over depth for some tokens. The model stays as it is.

    >>> connection, embedding, sublayers = unroll(model, tokens)
    >>> final_norm(model)(connection(embedding, sublayers))  # the last hidden state

    Args:
        model: a model whose residual is known: an attached one, one of `RELEASED` by its type, or any whose layers
            `attach` can read, which have the plain residual.
        tokens: int64 [batch, time].
        **inputs: more of the model's own, such as attention_mask.

    Returns:
        The connection, with the model's own parameters; the embedding [batch, time, dim]; and its sublayers.

    Raises:
        UsageError: a model whose residual is not known.
    """
    decoder: Any = decoder_of(model)
    if hasattr(decoder, CONNECTION):
        return unroll_attached(decoder, lambda: run_whole(model, tokens, **inputs))
    if decoder.config.model_type not in RELEASED:
        return _unroll_plain(model, tokens, inputs)
    layers = list(decoder.layers)
    parts = [part for layer in layers for part in layer.children()]
    calls = _calls([*layers, *parts], lambda: run_whole(model, tokens, **inputs))
    depth = RELEASED[decoder.config.model_type](decoder, lambda part: _again(part, calls.get(part)))
    stream = _first_argument(calls[layers[0]])
    embedding = stream[..., 0, :] if stream.ndim > 3 else stream[..., : depth.connection.dim]
    return depth.connection, embedding, depth.sublayers


def final_norm(model: Any) -> nn.Module:
    """The norm between the readout and the head; the identity where a model's last read is normalised already."""
    decoder: Any = decoder_of(model)
    reader = None if hasattr(decoder, CONNECTION) else RELEASED.get(decoder.config.model_type)
    return norm_of(decoder) if reader is None else reader(decoder, lambda part: part).norm


def _unroll_plain(model: Any, tokens: Tensor, inputs: dict[str, Any]) -> Unrolled:
    try:
        anatomy = read_anatomy(model)
    except UsageError as error:
        known = ", ".join(sorted(RELEASED))
        raise UsageError(f"{error}; the residuals that are known without reading layers are those of {known}") from None
    calls = _calls(anatomy.layers, lambda: run_whole(model, tokens, **inputs))
    sublayers: list[Sublayer] = [
        bind(piece, {}, layer, calls[layer][0][1:], calls[layer][1])
        for layer, code in zip(anatomy.layers, anatomy.codes, strict=True)
        for piece in code.pieces
    ]
    embedding = _first_argument(calls[anatomy.layers[0]])
    return make_connection("residual", anatomy.dim, len(sublayers)), embedding, sublayers


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _calls(modules: Sequence[nn.Module], forward: Callable[[], Any]) -> dict[nn.Module, Call]:
    """What each module is called with while `forward` runs."""
    calls: dict[nn.Module, Call] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: calls.update({module: (args, kwargs)}), with_kwargs=True
        )
        for module in modules
    ]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _first_argument(call: Call) -> Tensor:
    args, kwargs = call
    return args[0] if args else kwargs["hidden_states"]


def _again(part: nn.Module, call: Call | None) -> Sublayer:
    args, kwargs = call or ((), {})

    def function(x: Tensor, **others: Tensor) -> Tensor:
        given = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        out = part(x, *args[1:], **(given | others))
        return out[0] if isinstance(out, tuple) else out

    return function


def _chain(*functions: Sublayer) -> Sublayer:
    """The functions one after the other, of the first of the mixtures that a site reads."""

    def sublayer(h: Tensor, *_: Tensor) -> Tensor:
        for function in functions:
            h = function(h)
        return h

    return sublayer


def _beam(decoder: Any, again: Again) -> Depth:
    sublayers = _normed_on_both_sides(decoder, again)
    connection = make_connection("depth-scaled", decoder.config.hidden_size, len(sublayers), norm=False)
    return Depth(connection, sublayers, decoder.norm)


def _muse_spark(decoder: Any, again: Again) -> Depth:
    sublayers, config = _normed_on_both_sides(decoder, again), decoder.config
    connection = make_connection(
        "muse-gate",
        config.hidden_size,
        len(sublayers),
        temperature=float(config.residual_gate_temperature),
        norm=False,
    )
    gates = [
        gate.gate
        for layer in decoder.layers
        for gate in (layer.post_attention_residual_gate, layer.post_feedforward_residual_gate)
    ]
    connection.gate = nn.ParameterList(gates)
    return Depth(connection, sublayers, decoder.norm)


def _normed_on_both_sides(decoder: Any, again: Again) -> list[Sublayer]:
    return [
        _chain(*map(again, parts))
        for layer in decoder.layers
        for parts in (
            (layer.input_layernorm, layer.self_attn, layer.post_attention_layernorm),
            (layer.pre_feedforward_layernorm, layer.mlp, layer.post_feedforward_layernorm),
        )
    ]


def _qwen4(decoder: Any, again: Again) -> Depth:
    config = decoder.config
    if any(layer.ple is not None for layer in decoder.layers):
        raise UsageError(
            "per-layer embeddings (ple_layer_ids) write another vector into each stream, which no rule has"
        )
    reads = [read for layer in decoder.layers for read in (layer.attn_hyper_connection, layer.mlp_hyper_connection)]
    connection = make_connection(
        "gated-residual",
        config.hidden_size,
        len(reads),
        streams=config.hc_count,
        rank=config.hc_lowrank,
        eps=config.rms_norm_eps,
    )
    everywhere = [*reads, decoder.hyper_connection_mixer]
    gains = [1 + read.hc_norm.weight.unflatten(0, (config.hc_count, -1)) for read in everywhere]
    connection.gain = nn.ParameterList(gain.detach() for gain in gains)
    connection.down = nn.ParameterList(read.input_mix_weight_down.weight for read in everywhere)
    connection.up = nn.ParameterList(read.input_mix_weight_up.weight for read in everywhere)
    connection.write = nn.ParameterList(read.block_inject_weight.weight for read in reads)
    blocks = [
        block
        for layer in decoder.layers
        for block in (getattr(layer, "linear_attn", None) or layer.self_attn, layer.mlp)
    ]
    return Depth(connection, list(map(again, blocks)), nn.Identity())


class HyperConnections(Streams):
    """The streams of DeepSeek-V4 and Hunyuan V4, weighed by the model's own modules.

    h = sum_n p_n X_n with p = sigmoid(a_pre u P_pre + b_pre) + eps, u = RMSNorm(vec X); what mixes and writes the
    streams is what the module returns. The readout is such a sum, too, with weights of its own.
    """

    def __init__(self, decoder: Any) -> None:
        modules = [module for layer in decoder.layers for module in (layer.attn_hc, layer.ffn_hc)]
        super().__init__(decoder.config.hidden_size, len(modules), decoder.config.hc_mult)
        self.eps = decoder.config.rms_norm_eps
        self.weighers = nn.ModuleList(modules)
        self.head = decoder.hc_head

    def weigh(self, values: Values, site: int) -> Weights:
        (streams,) = values
        u = widen(streams).flatten(-2)
        u = u * inverse_rms(u, self.eps)
        if site == self.sublayers:
            head: Any = self.head
            return torch.sigmoid(F.linear(u, head.hc_fn) * head.hc_scale + head.hc_base) + head.eps, None, None
        weigher: Any = self.weighers[site]
        n = self.streams
        read = torch.sigmoid(F.linear(u, weigher.fn[:n]) * weigher.scale[0] + weigher.base[:n]) + weigher.hc_eps
        write, *mix, _ = weigher(streams.reshape(1, -1, n, self.dim).contiguous())
        shape = streams.shape[:-2]
        mixing = mix[0].mT.reshape(*shape, n, n) if mix else None
        return read, mixing, write.reshape(*shape, n)

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        (streams,) = values
        return (weights[0].unsqueeze(-1) * streams).sum(-2).to(streams.dtype)


def _hyper_connections(decoder: Any, again: Again) -> Depth:
    sublayers = [
        _chain(again(norm), again(block))
        for layer in decoder.layers
        for norm, block in (
            (layer.input_layernorm, layer.self_attn),
            (layer.post_attention_layernorm, layer.mlp),
        )
    ]
    return Depth(HyperConnections(decoder), sublayers, decoder.norm)


def _inkling2(decoder: Any, again: Again) -> Depth:
    """Block AttnRes whose full-attention layers read a mixture for each of q, k and v. Others read one three times."""
    layers, dim = decoder.layers, decoder.config.hidden_size
    connection: Any = make_connection(
        "block",
        dim,
        2 * len(layers),
        block_size=2 * decoder.config.n_layers_per_attn_res_block,
        value_norm=True,
        scaled_scores=True,
        reads="qkv",
    )
    reads = [read for layer in layers for read in (layer.attention_input, layer.mlp_input)]
    for site, read in enumerate([*reads, decoder.final_input]):
        if read is not None:  # the first site reads the embedding
            connection.query[site].data = read.query.expand_as(connection.query[site]).clone()

    def attention(layer: Any) -> Sublayer:
        convolution = again(layer.post_attention_convolution)
        if hasattr(layer, "input_layernorm"):
            return _chain(again(layer.input_layernorm), again(layer.self_attn), convolution)

        def sublayer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            normed = {
                "key_hidden_states": layer.k_input_layernorm(k),
                "value_hidden_states": layer.v_input_layernorm(v),
            }
            return convolution(again(layer.self_attn)(layer.q_input_layernorm(q), **normed))

        return sublayer

    sublayers = [
        sublayer
        for layer in layers
        for sublayer in (
            attention(layer),
            _chain(again(layer.post_attention_layernorm), again(layer.mlp), again(layer.post_mlp_convolution)),
        )
    ]
    return Depth(connection, sublayers, decoder.norm)


RELEASED: dict[str, Callable[[Any, Again], Depth]] = {
    "beam": _beam,
    "deepseek_v4": _hyper_connections,
    "hy_v4": _hyper_connections,
    "inkling2_text": _inkling2,
    "muse_spark_text": _muse_spark,
    "qwen4_exp_text": _qwen4,
}
"""Readers by the model type of the decoder's configuration."""


def _read(model: nn.Module, tokens: Tensor) -> Unrolled | None:
    return unroll(model, tokens) if callable(getattr(model, "get_decoder", None)) else None


READERS.append(_read)

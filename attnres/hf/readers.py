"""How released decoders carry information through depth: a reader per type maps modules to sites of a connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.connections import Connection, Sublayer, Values, Weights, make_connection
from attnres.connections.streams import Streams
from attnres.hf.layer import Call
from attnres.model import sublayer_name
from attnres.ops import inverse_rms, widen


class Calls(dict[nn.Module, Call]):
    """What modules were called with, of those that sublayers have to know about."""

    def again(self, module: nn.Module, called: Callable[..., Any] | None = None) -> Sublayer:
        """A function of its input that calls a module, or what is called for it, with whatever else it was called
        with before."""
        self[module], call = ((), {}), called or module

        def function(x: Tensor, **others: Tensor) -> Tensor:
            args, kwargs = self[module]
            given = {name: value for name, value in kwargs.items() if name != "hidden_states"}
            return first_of(call(x, *args[1:], **(given | others)))

        return function


def first_of(output: Any) -> Tensor:
    """What a module returns, without what it returns behind it."""
    return output[0] if isinstance(output, tuple) else output


class Site(NamedTuple):
    """Where a model computes a sublayer."""

    entries: tuple[nn.Module, ...]
    """The modules that are given what it reads: one, or one for each of its reads."""
    exits: tuple[nn.Module, ...]
    """Those whose outputs add up to what it adds; none where its function has to be called."""
    function: Sublayer


class Depth(NamedTuple):
    """How a decoder carries information through depth."""

    connection: Connection
    sites: list[Site]
    norm: nn.Module
    """What follows the readout, before the head."""
    entrance: nn.Module
    """The first module that is given the embedding, in one stream or in several."""
    last: nn.Module
    """Returns what the head reads."""


def _chain(calls: Calls, *modules: nn.Module) -> Site:
    """A sublayer of modules one after the other, of the first of the mixtures that a site reads."""
    functions = list(map(calls.again, modules))

    def sublayer(h: Tensor, *_: Tensor) -> Tensor:
        for function in functions:
            h = function(h)
        return h

    return Site(modules[:1], modules[-1:], sublayer)


def _halves(calls: Calls, layers: Any, *halves: str) -> list[Site]:
    """A site for each half of each layer, whose modules are named in the order in which they are called."""
    return [_chain(calls, *(getattr(layer, part) for part in half.split())) for layer in layers for half in halves]


NORMED_ON_BOTH_SIDES = (
    "input_layernorm self_attn post_attention_layernorm",
    "pre_feedforward_layernorm mlp post_feedforward_layernorm",
)


def _beam(decoder: Any, calls: Calls) -> Depth:
    sites = _halves(calls, decoder.layers, *NORMED_ON_BOTH_SIDES)
    connection = make_connection("depth-scaled", decoder.config.hidden_size, len(sites), norm=False)
    return Depth(connection, sites, decoder.norm, decoder.layers[0], decoder.norm)


def _muse_spark(decoder: Any, calls: Calls) -> Depth:
    sites, config = _halves(calls, decoder.layers, *NORMED_ON_BOTH_SIDES), decoder.config
    temperature = float(config.residual_gate_temperature)
    connection = make_connection("muse-gate", config.hidden_size, len(sites), temperature=temperature, norm=False)
    connection.gate = nn.ParameterList(
        gate.gate
        for layer in decoder.layers
        for gate in (layer.post_attention_residual_gate, layer.post_feedforward_residual_gate)
    )
    return Depth(connection, sites, decoder.norm, decoder.layers[0], decoder.norm)


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


def _hyper_connections(decoder: Any, calls: Calls) -> Depth:
    sites = _halves(calls, decoder.layers, "input_layernorm self_attn", "post_attention_layernorm mlp")
    return Depth(HyperConnections(decoder), sites, decoder.norm, decoder.layers[0], decoder.norm)


class Lane(Connection):
    """A site that reads one stream of several and writes some: h = s X_i; X_j <- X_j + y, or c y in its place, where c
    gives it the rms of X_0. s is a number or one per channel."""

    def __init__(self, name: str, read: int, written: Sequence[int], replaces: bool = False, scale: Any = 1.0) -> None:
        nn.Module.__init__(self)
        self.name, self.read, self.written, self.replaces, self.scale = name, read, list(written), replaces, scale

    def weigh(self, values: Values, site: int) -> Weights:
        return 1.0

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        return values[0][..., self.read, :] * self.scale

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        if not self.replaces:
            return weights
        target, size = (widen(x).square().mean(-1, keepdim=True) for x in (values[0][..., 0, :], y))
        return (target / size.clamp_min(1e-5)).sqrt()

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        (streams,) = values
        written = torch.zeros(streams.shape[-2], 1, dtype=streams.dtype, device=streams.device)
        written[self.written] = 1
        kept = streams * (1 - written) if self.replaces else streams
        return ((kept + written * (weights * y).unsqueeze(-2)).to(streams.dtype),)


class WithLanes(Connection):
    """Streams some of whose sites are lanes. sites: the numbers of the inner rule's sublayers, and lanes between."""

    def __init__(self, inner: Connection, sites: Sequence[int | Lane]) -> None:
        super().__init__(inner.dim, len(sites))
        self.inner = inner
        self.rules = [(site, 0) if isinstance(site, Lane) else (inner, site) for site in (*sites, inner.sublayers)]
        self.names = tuple(site.name if isinstance(site, Lane) else sublayer_name(site) for site in sites)

    def start(self, x: Tensor) -> Values:
        return self.inner.start(x)

    def weigh(self, values: Values, site: int) -> Weights:
        rule, number = self.rules[site]
        return rule.weigh(values, number)

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        rule, number = self.rules[site]
        return rule.gather(values, weights, number)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        rule, number = self.rules[site]
        return rule.weigh_output(values, weights, number, y)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        rule, number = self.rules[site]
        return rule.scatter(values, weights, number, h, y)


def _gemma3n(decoder: Any, calls: Calls) -> Depth:
    """AltUp with LAuReL. Maps of dim x dim are sublayers, too: those that make further streams of the embedding and
    that take them back at the end, and what a layer's per-layer input adds to them."""
    config, layers = decoder.config, decoder.layers
    n, active = config.altup_num_inputs, config.altup_active_idx
    options = {"streams": n, "active": active, "laurel": True, "eps": config.rms_norm_eps}
    altup: Any = make_connection("altup", config.hidden_size, 2 * len(layers), **options)
    places: list[int | Lane] = [Lane(f"stream {i}", 0, [i], replaces=True) for i in range(1, n)]
    sites = [_chain(calls, projection) for projection in decoder.altup_projections]
    for index, layer in enumerate(layers):
        theirs, first, second = layer.altup, 2 * index, 2 * index + 1
        for site in (first, second):
            altup.router[site], altup.router_gain[site] = theirs.modality_router.weight, theirs.router_norm.weight
        altup.predict[first] = theirs.prediction_coefs.weight.detach().view(n, n, n)
        altup.correct[second] = theirs.correction_coefs.weight
        altup.laurel_gain[first] = layer.input_layernorm.weight
        scale = theirs.correct_output_scale if config.altup_correct_scale else 1.0
        places += [first, second, Lane(f"layer {index} per-layer input", active, range(1, n), scale=scale)]
        mlp = _chain(calls, layer.pre_feedforward_layernorm, layer.mlp, layer.post_feedforward_layernorm)
        sites += [_with_laurel(layer, calls), mlp, _per_layer_input(layer, calls)]
    places += [Lane(f"unembed {i}", i, [i], replaces=True) for i in range(1, n)]
    sites += [_chain(calls, projection) for projection in decoder.altup_unembed_projections]
    return Depth(WithLanes(altup, places), sites, decoder.norm, decoder.altup_projections[0], decoder.norm)


def _with_laurel(layer: Any, calls: Calls) -> Site:
    norm, laurel = layer.input_layernorm, layer.laurel
    attention = _chain(calls, norm, layer.self_attn, layer.post_attention_layernorm)
    low_rank = _chain(calls, norm, laurel.linear_left, laurel.linear_right, laurel.post_laurel_norm)
    exits = attention.exits + low_rank.exits
    return Site((norm,), exits, lambda h: attention.function(h) + low_rank.function(h))


def _per_layer_input(layer: Any, calls: Calls) -> Site:
    gate, project, norm = layer.per_layer_input_gate, layer.per_layer_projection, layer.post_per_layer_input_norm
    calls.again(layer)
    return Site((gate,), (norm,), lambda h: norm(project(layer.act_fn(gate(h)) * calls[layer][0][2])))


def _qwen4(decoder: Any, calls: Calls) -> Depth:
    """Gated Residual. What per-layer embeddings add to a stream depends on that stream alone: a sublayer for each."""
    config, n = decoder.config, decoder.config.hc_count
    reads = [read for layer in decoder.layers for read in (layer.attn_hyper_connection, layer.mlp_hyper_connection)]
    options = {"streams": n, "rank": config.hc_lowrank, "eps": config.rms_norm_eps}
    connection = make_connection("gated-residual", config.hidden_size, len(reads), **options)
    everywhere = [*reads, decoder.hyper_connection_mixer]
    gains = [1 + read.hc_norm.weight.unflatten(0, (n, -1)) for read in everywhere]
    connection.gain = nn.ParameterList(gain.detach() for gain in gains)
    connection.down = nn.ParameterList(read.input_mix_weight_down.weight for read in everywhere)
    connection.up = nn.ParameterList(read.input_mix_weight_up.weight for read in everywhere)
    connection.write = nn.ParameterList(read.block_inject_weight.weight for read in reads)
    places: list[int | Lane] = []
    sites: list[Site] = []
    for index, layer in enumerate(decoder.layers):
        if layer.ple is not None:
            embed = calls.again(layer.ple, layer.ple.forward)
            places += [Lane(f"layer {index} embedding, stream {i}", i, [i]) for i in range(n)]
            sites += [Site((layer.ple,), (), _of_one_stream(embed, i, n)) for i in range(n)]
        places += [2 * index, 2 * index + 1]
        sites += [_chain(calls, getattr(layer, "linear_attn", None) or layer.self_attn), _chain(calls, layer.mlp)]
    if len(places) > len(reads):
        connection = WithLanes(connection, places)
    return Depth(connection, sites, nn.Identity(), decoder.layers[0], decoder.hyper_connection_mixer)


def _of_one_stream(function: Sublayer, stream: int, count: int) -> Sublayer:
    return lambda h: function(h.repeat(1, 1, count)).chunk(count, -1)[stream]


def _inkling2(decoder: Any, calls: Calls) -> Depth:
    """Block AttnRes whose full-attention layers read a mixture for each of q, k and v. Others read one three times."""
    config = decoder.config
    reads = "qkv" if "hybrid" in config.layer_types else "one"
    options = {"reads": reads, "value_norm": True, "scaled_scores": True}
    size = 2 * config.n_layers_per_attn_res_block
    connection: Any = make_connection("block", config.hidden_size, 2 * len(decoder.layers), block_size=size, **options)
    connection.to(decoder.final_input.query.device)
    inputs = [read for layer in decoder.layers for read in (layer.attention_input, layer.mlp_input)]
    for site, read in enumerate([*inputs, decoder.final_input]):
        if site:  # the first has one source, and no query
            shape = connection.query[site].shape
            connection.query[site] = nn.Parameter(read.query.detach().expand(shape).contiguous())

    def attention(layer: Any) -> Site:
        convolution = layer.post_attention_convolution
        if hasattr(layer, "input_layernorm"):
            return _chain(calls, layer.input_layernorm, layer.self_attn, convolution)
        norms = layer.q_input_layernorm, layer.k_input_layernorm, layer.v_input_layernorm
        attend, convolve = calls.again(layer.self_attn), calls.again(convolution)

        def sublayer(*reads: Tensor) -> Tensor:
            q, k, v = (norm(read) for norm, read in zip(norms, reads, strict=True))
            return convolve(attend(q, key_hidden_states=k, value_hidden_states=v))

        return Site(norms, (convolution,), sublayer)

    mlps = _halves(calls, decoder.layers, "post_attention_layernorm mlp post_mlp_convolution")
    sites = [site for pair in zip(map(attention, decoder.layers), mlps, strict=True) for site in pair]
    return Depth(connection, sites, decoder.norm, decoder.layers[0], decoder.norm)


RELEASED: dict[str, Callable[[Any, Calls], Depth]] = {
    "beam": _beam,
    "deepseek_v4": _hyper_connections,
    "gemma3n_text": _gemma3n,
    "hy_v4": _hyper_connections,
    "inkling2_text": _inkling2,
    "muse_spark_text": _muse_spark,
    "qwen4_exp_text": _qwen4,
}
"""Readers by the model type of the decoder's configuration."""

"""Block Attention Residuals: attention over the sums of blocks of sublayers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from attnres.connections.base import (
    Connection,
    Mixture,
    Normed,
    Sublayer,
    Values,
    Weights,
    inverse_rms,
    one_of,
    refuse_output,
    stream_dtype,
    widen,
)
from attnres.connections.options import option_defaults
from attnres.connections.reads import Reads, each_read, mixture, per_read, reads_of_sites
from attnres.connections.two_phase import FEW, Reading, TwoPhase, check_heads
from attnres.errors import UsageError, check_count
from attnres.ops import Norm, depth_scores, is_fused, read, read_one, takes_norm
from attnres.ops.reference import over_channels
from attnres.torch_private import own_parameters

BLOCKS = 8


def size_of_blocks(sublayers: int, block_size: int | None, blocks: int) -> int:
    """Sublayers per block: block_size or, if that is None, ceil(sublayers / blocks). Raises UsageError for both."""
    check_count("blocks", blocks)
    if block_size is None:
        return -(-sublayers // blocks)
    check_count("block_size", block_size)
    if blocks != BLOCKS:
        raise UsageError("give block_size or blocks, not both")
    return block_size


@dataclass(frozen=True)
class AttnResOptions:
    """Options that Block, Full and Window share; most are the ablations of the paper's Table 4."""

    eps: float = 1e-6
    """What the keys' norm adds to the mean square."""
    query: Literal["static", "input"] = "static"
    """input: q_l = w_l + W_l RMSNorm(newest source), W_l = 0 at the start."""
    mixing: Literal["keys", "static"] = "keys"
    """static: p = softmax of a free vector per site; no keys."""
    weighting: Literal["softmax", "sigmoid"] = "softmax"
    """sigmoid: p_i = sigmoid(score_i), not normalised over depth."""
    key_norm: bool = True
    """False: score_i = w_l . v_i; no gain."""
    heads: int = 1
    """Slices of dim, each with a softmax of its own."""
    key_slice: int | None = None
    """Keys are the last so many channels, R: score_i = w_l . RMSNorm(v_i[-R:]; g_l), w_l and g_l in R^R; values are
    whole. Sliced LR-AttnRes (2607.09694)."""
    null: bool = False
    """p_i = e^score_i / (1 + sum_j e^score_j): with a score of zero that has no source the weights add up to less than
    one. Softmax1 over depth, OASIS (2605.17887)."""
    window: int | None = None
    """Only the embedding and so many of the newest sources."""
    total: bool = False
    """The weights are scaled to one at the start, so that h is the sum of the sources and not their mean: n p_i for n
    sources (2 p_i for sigmoid). For weights that were trained with the plain residual; spec.md 13.12."""
    value_norm: bool = False
    """h_l = sum_i p_i v_i / rms(v_i); a single source is read as it is. As transformers' inkling2 has it."""
    scaled_scores: bool = False
    """Scores are divided by sqrt(dim), or by the square root of a head's width. As transformers' inkling2 has it."""
    round_phase_1: bool = False
    """Attention over the finished blocks is kept in the stream's dtype until the open block joins, and so are its
    gradients. In bfloat16 that rounds each number once more, by at most 2^-9 of itself, and saves memory and time."""

    reads: Reads = "one"
    """qkv: attention reads a mixture for each of q, k and v; qkv-gate-up: an MLP one for its gate and one for what it
    gates, too. A query, a gain or whatever makes p is then [reads, ...] at such a site. Multiway (2502.12170).
    qk-v: one for q and k, and one for v, as RD-AttnRes (2608.01075): [2, ...]."""

    def __post_init__(self) -> None:
        if self.window is not None:
            check_count("window", self.window)
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal:
                one_of(name, getattr(self, name), get_args(hint))
        if self.mixing == "static" and self.query == "input":
            raise UsageError('mixing="static" has no query; leave query="static"')
        if self.key_slice is not None:
            check_count("key_slice", self.key_slice)
            if self.mixing == "static":
                raise UsageError('mixing="static" has no keys; leave out key_slice')
        if self.null and self.weighting == "sigmoid":
            raise UsageError('weighting="sigmoid" needs no null; leave it out')

    @property
    def fused(self) -> bool:
        """Whether `attnres.ops.attend` computes it: with these alone it has no field for the rest."""
        kept = {name: getattr(self, name) for name in ("eps", "heads", "window", "total", "round_phase_1", "reads")}
        return self == AttnResOptions(**kept)


if TYPE_CHECKING:

    class AttnResKeywords(TypedDict, total=False):
        """AttnResOptions as keyword arguments, for editors and type checkers."""

        eps: float
        query: Literal["static", "input"]
        mixing: Literal["keys", "static"]
        weighting: Literal["softmax", "sigmoid"]
        key_norm: bool
        heads: int
        key_slice: int | None
        null: bool
        window: int | None
        total: bool
        value_norm: bool
        scaled_scores: bool
        round_phase_1: bool
        reads: Reads


class Block(TwoPhase):
    """Block Attention Residuals: h_l = sum_i p_i v_i, p = softmax_i(w_l . RMSNorm(v_i; g_l, eps)), over block sums v_i.

    The sources at site l are the embedding, the sums of the finished blocks of `block_size` sublayers, and the partial
    sum of the open block if it is not empty; they are exactly `values`. The sum is over raw sources, in float32, with
    one rounding at the end. At the start w_l = 0 and g_l = 1, so h is the mean of the sources.
    Options: `block_size` or `blocks`, and those of AttnResOptions as keyword arguments. The default is about eight
    blocks at any depth, as the paper advises: block_size = ceil(sublayers / blocks).
    Source: Attention Residuals (2603.15031), section 3; spec.md 3 and 4.
    """

    channel_maps = ("query_map",)
    shared_options = AttnResOptions

    def __init__(
        self,
        dim: int,
        sublayers: int,
        block_size: int | None = None,
        blocks: int = BLOCKS,
        **options: Unpack[AttnResKeywords],
    ) -> None:
        super().__init__(dim, sublayers)
        self.block_size = size_of_blocks(sublayers, block_size, blocks)
        self._options = self.saved_options(self._options, sublayers)
        self.options = AttnResOptions(**options)
        self.eps = self.options.eps
        heads, width = self.options.heads, self.options.key_slice or dim
        check_heads(heads, dim)
        if width > dim or width % heads:
            raise UsageError(f"key_slice must be at most dim, {dim}, and a multiple of heads, {heads}, not {width}")
        self._key_width, self._heads = width, heads
        self._fused = self.options.fused
        self._rounds_phase_1 = self.options.round_phase_1
        # Of a subclass that takes outputs up in a way of its own, that way is asked.
        self._reads_alone = type(self).scatter is Block.scatter and type(self).absorb is Connection.absorb

        self._reads = reads_of_sites(self.options.reads, sublayers)
        self._shares_qk = self.options.reads == "qk-v"
        if self.options.mixing == "static":
            counts = (self._count(site) for site in range(sublayers + 1))
            self.logits = nn.ParameterList(map(per_read, repeat(0.0), self._reads, counts, repeat(heads)))
            return
        self.query = nn.ParameterList(per_read(0.0, reads, width) for reads in self._reads)
        if self.options.key_norm:
            self.gain = nn.ParameterList(per_read(1.0, reads, width) for reads in self._reads)
        if self.options.query == "input":
            self.query_map = nn.ParameterList(per_read(0.0, reads, width, dim) for reads in self._reads)

    @classmethod
    def saved_options(cls, options: dict[str, Any], sublayers: int) -> dict[str, Any]:
        if "blocks" not in option_defaults(cls):
            return options
        size = size_of_blocks(sublayers, options.get("block_size"), options.get("blocks", BLOCKS))
        return {"block_size": size, **{name: value for name, value in options.items() if name[:5] != "block"}}

    def _own(self, parameters: nn.ParameterList, site: int, read: int) -> Tensor:
        return each_read(parameters[site], self._reads[site])[read]

    def value_count(self, site: int) -> int | None:
        # A subclass may keep more in its values.
        return 1 + -(-site // self.block_size) if self._reads_alone else None

    def _count(self, site: int) -> int:
        """How many sources the site sees."""
        sources = 1 + -(-site // self.block_size)
        return sources if self.options.window is None else min(sources, 1 + self.options.window)

    def _visible(self, values: Values, site: int) -> Values:
        """Those of the values that the site attends to."""
        if self.options.window is None or len(values) <= 1 + self.options.window:
            return values
        return (values[0], *values[-self.options.window :])

    def weigh(self, values: Values, site: int) -> Weights:
        sources = self._visible(values, site)
        return mixture(self._weights(sources, site, read) for read in range(self._reads[site]))

    def _weights(self, sources: Values, site: int, read: int) -> Tensor:
        """p of one read, [sources, ..., heads]."""
        scores = self._scores(sources, site, read)
        if self.options.scaled_scores:
            scores = scores * (self._key_width // self.options.heads) ** -0.5
        if self.options.null:
            weights = torch.softmax(torch.cat([scores, torch.zeros_like(scores[:1])]), 0)[:-1]
        else:
            weights = torch.sigmoid(scores) if self.options.weighting == "sigmoid" else torch.softmax(scores, 0)
        if self.options.value_norm and len(sources) > 1:
            weights = weights * torch.stack([inverse_rms(source, self.options.eps) for source in sources])
        return weights * self._scale(len(scores)) if self.options.total else weights

    def _scale(self, sources: int) -> float:
        """What the weights of so many sources are multiplied by where they are scaled (`total`)."""
        return 2.0 if self.options.weighting == "sigmoid" else float(sources + self.options.null)

    def _scores(self, sources: Values, site: int, read: int) -> Tensor:
        """Return the scores before the softmax, [sources, ..., heads]."""
        options = self.options
        if options.mixing == "static":
            logits = self._own(self.logits, site, read)
            scores = logits.to(torch.promote_types(logits.dtype, widen(sources[0]).dtype))
            token_axes = sources[0].ndim - 1
            return scores.reshape(len(sources), *[1] * token_axes, options.heads)
        query, newest = widen(self._own(self.query, site, read)), widen(sources[-1])
        key_vector = query.to(torch.promote_types(query.dtype, newest.dtype))
        if options.query == "input":
            normed = newest * inverse_rms(newest, options.eps)
            key_vector = key_vector + torch.matmul(normed, self._own(self.query_map, site, read).to(normed).mT)
        if options.key_norm:
            key_vector = key_vector * self._own(self.gain, site, read)
        keys = sources if options.key_slice is None else [source[..., -self._key_width :] for source in sources]
        return torch.stack(depth_scores(keys, key_vector, options.eps if options.key_norm else None, options.heads))

    def gather(self, values: Values, weights: Weights, site: int) -> Mixture:
        if isinstance(weights, tuple):
            return self._mixture(self.gather(values, of_read, site) for of_read in weights)
        first, *others = zip(over_channels(weights, self.dim), self._visible(values, site), strict=True)
        h = first[0] * first[1]
        for weight, source in others:
            h = h + weight * source
        return h.to(values[0].dtype)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        opens_block = site % self.block_size == 0
        # The embedding is a block of its own, so the first sublayer opens a new one. At a block's end nothing moves:
        # the partial is complete, and from the next site on it is a block. Its sum is kept in the stream's dtype:
        # autocast makes outputs narrower, and the plain residual does not round each sum to that.
        if opens_block:
            return (*values, y)
        partial = values[-1]
        if partial.dtype != values[0].dtype:
            partial = partial.to(stream_dtype(values[0], partial))
        return (*values[:-1], partial + y)

    def mix(self, values: Values, site: int) -> tuple[Weights, Mixture]:
        return (TwoPhase if self._fused else Connection).mix(self, values, site)

    def run(self, values: Values, sublayers: Iterable[Sublayer], first: int = 0) -> Values:
        return (TwoPhase if self._fused else Connection).run(self, values, sublayers, first)

    def pass_of(self, values: Values) -> FewTokens | None:
        if torch.is_grad_enabled() or is_compiling() or values[0].numel() > FEW * self.dim:
            return None
        if (type(self).run, type(self).readout) != (Block.run, Connection.readout):  # somebody's own are called
            return None
        self._fitting(values, (), 0)
        return self._few_tokens(values, range(self.sublayers + 1))

    def _run_few(self, values: Values, sublayers: list[Sublayer], first: int) -> Values:
        few = self._few_tokens(values, range(first, first + len(sublayers)))
        if few is None:
            return super()._run_few(values, sublayers, first)
        fitting = [f.whole if isinstance(f, Normed) and not few.takes(f.norm) else f for f in sublayers]
        return few.run(values, fitting, first)

    def _few_tokens(self, values: Values, sites: range) -> FewTokens | None:
        """What runs few tokens without gradients through these sites; None where it has no operator for that."""
        alone = self._reads_alone and self._fused and self.options.reads == "one"
        if not (alone and type(self).scatter is Block.scatter):
            return None
        queries, gains = self._queries_of_heads(sites)
        if len(queries) > len(sites) or not is_fused("auto", (*values, *queries, *gains), values[0].dtype):
            return None
        inference = torch.is_inference_mode_enabled()
        watched = all((site, inference) in self._watched for site in sites if site < self.sublayers)
        return FewTokens(self, sites.start, queries, gains, values[0].dtype, watched)

    def _bank(self, values: Values, first: int) -> Values:
        return values[: 1 + first // self.block_size] if self.options.window is None else ()

    def _read(
        self,
        values: Values,
        site: int,
        newest: Values,
        reading: Reading,
        y: Tensor | None = None,
        norm: Norm | None = None,
    ) -> tuple[Values, Mixture]:
        dtype, scale = values[0].dtype, self._scale(self._count(site)) if self.options.total else 1.0
        outs, total = read(
            newest, y, reading.queries, reading.gains, reading.prior, self.eps, dtype, scale=scale, norm=norm
        )
        return values if total is None else (*values[:-1], total), self._mixture(self._joined(outs, self._reads[site]))

    def _vectors(self, sites: range) -> tuple[list[Tensor], list[Tensor]]:
        """The queries and gains of all reads of consecutive sites."""
        # Not self.query[site]: 2 us, and longer where a sublayer has just filled the caches with its weights.
        if self.options.reads == "one":
            names = list(map(str, sites))
            queries, gains = own_parameters(self, "query"), own_parameters(self, "gain")
            try:
                return list(map(queries.__getitem__, names)), list(map(gains.__getitem__, names))
            except KeyError:  # pruned or parametrized: no parameter, but made of others
                return [self.query[site] for site in sites], [self.gain[site] for site in sites]
        reads = [(site, read) for site in sites for read in range(self._reads[site])]
        return [self._own(self.query, *read) for read in reads], [self._own(self.gain, *read) for read in reads]


class FewTokens(NamedTuple):
    """One pass of a Block over few tokens without gradients, with as little Python as there can be: of one token that
    takes most of the time.

    Each function that is called is out of the caches after a sublayer has read its weights, and takes 2 us.
    """

    rule: Block
    start: int
    """The site of the first of the vectors."""
    queries: Sequence[Tensor]
    gains: Sequence[Tensor]
    dtype: torch.dtype
    watched: bool
    """Whether each site's sublayer was seen to change nothing in place."""

    def takes(self, norm: Norm) -> bool:
        return takes_norm(norm, self.dtype)

    def run(self, values: Values, sublayers: Sequence[Sublayer], first: int) -> Values:
        rule, dtype, y, end = self.rule, self.dtype, None, first + len(sublayers)
        windowed, total, eps, size = rule.options.window is not None, rule.options.total, rule.eps, rule.block_size
        queries, gains, start, watched = self.queries, self.gains, self.start, self.watched
        for site, sublayer in enumerate(sublayers, first):
            sources = rule._visible(values, site) if windowed else values
            scale = float(len(sources)) if total else 1.0
            norm, sublayer = (sublayer.norm, sublayer.behind) if isinstance(sublayer, Normed) else (None, sublayer)
            h, newest = read_one(sources, y, queries[site - start], gains[site - start], eps, dtype, scale, norm)
            if newest is not None:
                values = (*values[:-1], newest)
            y = sublayer(h) if watched else rule._output_of(sublayer, h, values, site)
            if not isinstance(y, Tensor) or y.dtype != dtype or y.shape != h.shape:
                refuse_output(y, h)
                rest = list(sublayers[site + 1 - first :])
                return TwoPhase._run_few(rule, rule.absorb(values, None, site, h, y), rest, site + 1)
            if site + 1 == end or site % size == 0:
                values, y = rule.scatter(values, None, site, h, y), None
        return values

    def readout(self, values: Values) -> Tensor:
        rule = self.rule
        sources = rule._visible(values, rule.sublayers)
        scale = float(len(sources)) if rule.options.total else 1.0
        query, gain = self.queries[-1], self.gains[-1]
        return read_one(sources, None, query, gain, rule.eps, self.dtype, scale)[0]

"""Trace one text through depth: what each site reads, each source's part in the next token, and its effect."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.analysis.changes import Change, Indices, Mute, Noise, listed
from attnres.analysis.interventions import SiteReading, ids_for, prepared, replaced, without_dropout
from attnres.connections.matrix import is_of_transformers
from attnres.connections.offload import at_hand, device_of
from attnres.errors import UsageError
from attnres.model import Transformer

OnSite = Callable[[int], None]
"""Called with each site as it is reached; what it raises ends the work."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One text of T tokens, L sublayers, changes included."""

    tokens: Tensor
    """int64 [T]."""
    sources: Tensor
    """[L + 1, T, dim]: v_0 .. v_L."""
    weights: Tensor
    """[T, L + 1, L + 1]: M, mean over channels and over what a site reads, or of the one read asked for."""
    logits: Tensor
    """[T, vocabulary]."""

    @property
    def losses(self) -> Tensor:
        """[T - 1]: nats of tokens 1 .. T - 1, each given those before it."""
        return F.cross_entropy(self.logits[:-1].float(), self.tokens[1:], reduction="none")


@torch.no_grad()
def trace(
    model: Any,
    tokens: Sequence[int],
    changes: Iterable[Change] = (),
    read: int | None = None,
    on_site: OnSite = lambda site: None,
) -> Trace:
    """Run one text through a model, without dropout, and record what its depth does.

    Args:
        model: the lab's Transformer, or a Hugging Face model that `attnres.hf.unroll` takes.
        tokens: ids, at least one.
        changes: as for `intervene`.
        read: of a site that reads several mixtures, the one whose weights are kept; their mean if None. A site with
            fewer reads counts its last one.
        on_site: told how far it is.

    Raises:
        UsageError: as `intervene` does.
    """
    text = ids_for(model, "tokens", tokens)
    rows: list[Tensor] = []
    last: list[SiteReading] = []

    def watch(site: int, reading: SiteReading) -> None:
        on_site(site)
        weights, _ = _one_read(reading, read)
        rows.append(F.pad(weights.mean(-1).T, (0, connection.sublayers - site)))
        last[:] = [reading]

    connection = prepared(model, changes, watch)
    ids = torch.tensor(text, device=device_of(model))
    with replaced(model, connection), without_dropout(model):
        out = model(ids[None], use_cache=False) if is_of_transformers(model) else model(ids[None])
    logits = out if isinstance(out, Tensor) else out.logits
    return Trace(ids, torch.cat(last[0].sources).float(), torch.stack(rows, 1), logits[0])


def _index(value: Any, count: int, are: str) -> int:
    """A whole number below `count`, one of numpy's or torch's too."""
    if not 0 <= (index := operator.index(value)) < count:
        raise UsageError(f"{are} 0 to {count - 1}, not {value!r}")
    return index


def _one_read(reading: SiteReading, read: int | None) -> tuple[Tensor, Tensor]:
    """The weights [sources, T, 1 or dim] and the input [T, dim] of one read of a site, or the mean of all."""
    chosen = slice(None) if read is None else slice(min(read, len(reading.rows) - 1), None)
    weights = torch.stack([torch.cat(row.weights) for row in reading.rows[chosen]][: None if read is None else 1])
    inputs = torch.cat(reading.inputs[chosen][: None if read is None else 1])
    return weights.mean(0), inputs.mean(0)


@dataclass(frozen=True, eq=False)
class Explanation:
    """One token and one target, the id of a token that may follow. Rows are sites, columns sources."""

    weights: Tensor
    """[L + 1, L + 1]: M at the token."""
    sizes: Tensor
    """[L + 1, L + 1]: the root of the mean square over channels of what the source brings, M v."""
    shares: Tensor
    """[L + 1, L + 1]: the part of the site's logit that the source brings."""
    logits: Tensor
    """[L + 1, vocabulary]: the logit lens, what the readout would say if it read what the site reads."""
    rest: Tensor
    """[L + 1]: the target's logit less the row's shares: a norm's or head's bias, a cap, rounding."""


@torch.no_grad()
def explain(
    model: Any, traced: Trace, position: int, target: int, changes: Iterable[Change] = (), read: int | None = None
) -> Explanation:
    """Split one token's reads and logits: what each source contributes to each site, and to a logit there.

    The final norm's scale is fixed at its value for the site's input h_l. Norm and head are then linear, and with
    h_l = sum_i M[l, i] v_i the logit of the target is the sum of one share per source,

        logit_l = sum_i u . S(h_l) M[l, i] v_i,    u the head's row of the target, S the scale.

    Sublayers are not run again: their outputs are those of the trace.

    Args:
        model: the one that was traced.
        traced: from `trace`, with the same changes and read.
        position: of the token, 0 .. T - 1.
        target: an id.

    Raises:
        UsageError: a position or target that is not there, or a model without a known readout: its final norm is
            neither an RMS norm nor a layer norm.
    """
    position = _index(position, len(traced.tokens), "the text has tokens")
    target = _index(target, traced.logits.shape[-1], "the model's ids are")
    norm, head = readout_parts(model)
    inputs: list[Tensor] = []
    weights: list[Tensor] = []
    brought: list[Tensor] = []

    def watch(site: int, reading: SiteReading) -> None:
        m, h = _one_read(reading, read)
        vectors = torch.cat(reading.rows[0].vectors)  # the same for every read
        inputs.append(h[0])
        weights.append(F.pad(m[:, 0].mean(-1), (0, connection.sublayers - site)))
        brought.append(F.pad((m * vectors)[:, 0], (0, 0, 0, connection.sublayers - site)))

    connection = prepared(model, changes, watch)
    connection.first_position = position
    dtype = next(model.parameters()).dtype
    x, *outputs = traced.sources[:, None, position : position + 1].to(dtype)
    with at_hand(connection.inner, model):
        connection.readout(connection.run(connection.start(x), [lambda *_, y=y: y for y in outputs]))
        h, parts = torch.stack(inputs), torch.stack(brought)
        normed = norm(h.to(dtype))
        scaled = _scaled(norm, h, parts)
    with torch.enable_grad():
        leaf = normed.detach().requires_grad_()
        logits = head(leaf)
        (rows,) = torch.autograd.grad(logits[:, target].sum(), leaf)
    shares = (scaled * rows.float()[:, None]).sum(-1)
    logits = logits.detach().float()
    sizes = parts.square().mean(-1).sqrt()
    return Explanation(torch.stack(weights), sizes, shares, logits, logits[:, target] - shares.sum(-1))


def readout_parts(model: Any) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The final norm of a model, and what makes logits of what that returns."""
    if isinstance(model, Transformer):
        return model.norm, model.unembed
    from attnres.hf.released import readout_parts as of_transformers

    return of_transformers(model)


def _scaled(norm: nn.Module, h: Tensor, parts: Tensor) -> Tensor:
    """The parts [L + 1, L + 1, dim] of inputs h [L + 1, dim] under the norm's scale for h, without its bias.

    The norm is gain * c(h) times one number per token + bias, with c(h) = h (RMS norms) or h less its mean (layer
    norms). All is asked of the norm itself, whose classes write gain and eps in many ways.

    Raises:
        UsageError: it is neither.
    """
    dtype = next(iter(norm.parameters()), h).dtype

    def without_bias(v: Tensor) -> Tensor:
        return (norm(v.to(dtype)).float() - norm(-v.to(dtype)).float()) / 2

    alternating = torch.ones_like(h[:1])
    alternating[:, 1::2] = -1
    answer = without_bias(alternating)
    centres = without_bias(torch.ones_like(h[:1])).abs().max() < 1e-3 * answer.abs().max()

    def centred(v: Tensor) -> Tensor:
        return v - v.mean(-1, keepdim=True) if centres else v

    # Up to a number, which the division takes out again. In an odd width the mean is not 0, and no entry becomes 0.
    gain = answer / centred(alternating)
    ungained, normed = gain * centred(h), without_bias(h)
    size = ungained.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(h.dtype).tiny)
    unit = ungained / size
    number = (normed * unit).sum(-1, keepdim=True) / unit.square().sum(-1, keepdim=True).clamp_min(0.5) / size
    if ((normed - ungained * number).norm(dim=-1) > 0.05 * normed.norm(dim=-1)).any():
        raise UsageError(f"explain knows RMS norms and layer norms, and the final {type(norm).__name__} is neither")
    return gain * centred(parts) * number[..., None]


@dataclass(frozen=True)
class Effect:
    """What removing a source costs, in nats of the mean loss over the text."""

    source: int
    removed: float
    """The loss without it, less the loss."""
    random: tuple[float, ...]
    """The same for a random vector as large taken out in its place, one per seed."""


def removal_effects(
    model: Any,
    tokens: Sequence[int],
    sources: Iterable[int],
    changes: Iterable[Change] = (),
    sites: Indices = None,
    at: Indices = None,
    seeds: int = 3,
    on_site: OnSite = lambda site: None,
) -> Iterator[Effect]:
    """Remove sources one after the other, and measure how much the mean loss rises.

    The control is a random vector of the same size, read in the source's place with the same weight. The largest weight
    is often not the largest effect.

    Args:
        model: as for `trace`.
        tokens: ids of the text, two at least.
        sources: which ones.
        changes: those that apply already.
        sites: at which it is removed, as far as they can read it; all of them if None.
        at: the positions at which it is removed; all of them if None.
        seeds: how many random vectors.
        on_site: as for `trace`.

    Raises:
        UsageError: as `trace` does, or where nothing would be removed.
    """
    text = ids_for(model, "tokens", tokens)
    if len(text) < 2:
        raise UsageError("a loss needs a text of two tokens at least")
    held = list(changes)
    asked, places = listed("sites", sites), listed("at", at)
    if asked == () or (places is not None and min(places, default=len(text)) >= len(text)):
        raise UsageError(f"nothing would be removed: sites={sites!r}, at={at!r}, in a text of {len(text)} tokens")

    def loss(*more: Change) -> float:
        return float(trace(model, text, [*held, *more], on_site=on_site).losses.mean())

    before = loss()
    for source in sources:
        reading = None if asked is None else tuple(site for site in asked if site >= source)
        if reading == ():
            yield Effect(source, 0.0, (0.0,) * seeds)
            continue
        random = tuple(loss(Noise(source, seed, reading, places)) - before for seed in range(seeds))
        yield Effect(source, loss(Mute(source, reading, places)) - before, random)

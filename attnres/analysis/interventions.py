"""Change what depth reads in a model while it runs: the changed connection, and how it replaces the model's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnres.analysis.changes import Change, Made, Noise, Patch, SiteRead
from attnres.analysis.positions import told_positions
from attnres.connections import Connection, Sublayer, Values, Weights
from attnres.connections.base import Mixture, reads_in
from attnres.connections.matrix import UNDER_CHANGES, is_of_transformers, unrolled
from attnres.connections.offload import at_hand, device_of
from attnres.connections.reads import mixture
from attnres.errors import UsageError, list_of_ids


class SiteReading(NamedTuple):
    """What a site reads, before and after the changes: the weights of `Intervened`."""

    weights: Weights
    """The rule's own."""
    h: Mixture
    """By the rule alone."""
    tags: Mixture
    """The rows of M by the rule alone, as it reads the tags: [tag, tokens.., 1 or dim]."""
    rows: tuple[SiteRead, ...]
    """One row for each mixture, changes included."""
    sources: Values
    made: Made
    changed: bool

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the sublayer is given."""
        if not self.changed:
            return reads_in(self.h)
        return tuple(row.total.to(h.dtype) for row, h in zip(self.rows, reads_in(self.h), strict=True))


Watch = Callable[[int, SiteReading], None]
"""Called with each site and what it reads."""


class Intervened(Connection):
    """A connection under changes, to be put in its place.

    Values: the sources so far; the inner connection's values; those of the tags by which M is read (spec.md 2), whose
    channels are one; the positions of the tokens, int64 [time].
    """

    def __init__(
        self,
        inner: Connection,
        changes: Iterable[Change] = (),
        others: Mapping[tuple[int, ...], Sequence[Tensor]] | None = None,
        watch: Watch = lambda site, reading: None,
    ) -> None:
        super().__init__(inner.dim, inner.sublayers)
        self.inner = inner
        self.pre_norm = inner.pre_norm  # type: ignore[misc]
        self.changes = tuple(changes)
        self.others = others or {}
        self.watch = watch
        self._drawn: dict[Noise, Tensor] = {}
        self._channels = inner.dim if inner.mixes_channels else 1
        self.first_position = 0
        """Position of the next call's first token: the length of the key-value cache."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the inner connection's, so that a model saves the same under changes as without."""
        return self.inner.state_dict(*args, **kwargs)

    def start(self, x: Tensor) -> Values:
        positions = self.first_position + torch.arange(x.shape[-2], device=x.device)
        x = self._entering(0, x, Made(positions, self.others, self._drawn))
        return (x, *self.inner.start(x), *self.inner.start(self._tag(0, x)), positions)

    def reads(self, site: int) -> int:
        return self.inner.reads(site)

    def weigh(self, values: Values, site: int) -> SiteReading:
        sources, inner, tagged, positions = _parts(values, site)
        weights = self.inner.weigh(inner, site)
        h, tags = (self.inner.gather(of, weights, site) for of in (inner, tagged))
        rows = tuple(SiteRead(list(tag[: site + 1].unbind()), list(sources)) for tag in reads_in(tags))
        made = Made(positions, self.others, self._drawn)
        changes = [change for change in self.changes if change.rewrites(site)]
        for change in changes:
            for row in rows:
                change.rewrite(row, change.where(positions), made)
        reading = SiteReading(weights, h, tags, rows, sources, made, bool(changes))
        self.watch(site, reading)
        return reading

    def gather(self, values: Values, weights: SiteReading, site: int) -> Mixture:
        if values[0] is not weights.sources[0]:  # tags, by mixing_matrix: changes are those of the real sources
            raise UsageError(UNDER_CHANGES)
        return mixture(weights.inputs)

    def weigh_output(self, values: Values, weights: SiteReading, site: int, y: Tensor) -> SiteReading:
        y = self._entering(site + 1, y, weights.made)
        inner = _parts(values, site)[1]
        return weights._replace(weights=self.inner.weigh_output(inner, weights.weights, site, y))

    def scatter(self, values: Values, weights: SiteReading, site: int, h: Tensor, y: Tensor) -> Values:
        sources, inner, tagged, positions = _parts(values, site)
        y = self._entering(site + 1, y, weights.made)
        # What the rule itself reads, and not the changed h, is what it carries on.
        inner = self.inner.scatter(inner, weights.weights, site, weights.h, y)
        tagged = self.inner.scatter(tagged, weights.weights, site, weights.tags, self._tag(site + 1, y))
        return (*sources, y, *inner, *tagged, positions)

    def _entering(self, source: int, vector: Tensor, made: Made) -> Tensor:
        for change in self.changes:
            vector = change.enter(source, vector, change.where(made.positions), made)
        return vector

    def _tag(self, index: int, like: Tensor) -> Tensor:
        dtype = torch.promote_types(like.dtype, torch.float32)
        tag = torch.zeros(self.sublayers + 1, *like.shape[:-1], self._channels, dtype=dtype, device=like.device)
        tag[index] = 1
        return tag


@contextmanager
def intervene(model: Any, *changes: Change) -> Iterator[Any]:
    """Change what depth reads in a model, inside a `with`.

    >>> with intervene(model, Mute(3, sites=8), Pin(0, weight=0.5, tokens=[4, 5])):
    ...     logits = model(tokens)

    The changes apply to everything that runs the model: forward and backward passes, `attnres.generate`, and `generate`
    of Transformers. They are made in the given order.

    Sites are 0 .. L-1 for the sublayers and L for the readout. Source 0 is the embedding, and source i + 1 the output
    of sublayer i. Positions of tokens count from the start of the text, including tokens that are in a key-value cache
    and the padding of a batch. A custom module tells the length of its cache by an argument with `get_seq_length`, as
    the caches of Transformers do. Otherwise, as with recurrent states alone (mamba), positions count from the
    start of each call.

    A deep copy made inside the `with` keeps the changes; a state dict has none. `mixing_matrix` and `depth_profile` do
    not take a model inside `intervene`: `trace` has an argument for changes.

    Args:
        model: the lab's Transformer, a Hugging Face model that `attnres.hf.unroll` takes, or any module that holds one
            connection and passes it [.., time, dim].
        *changes: `Mute`, `Scale`, `Pin`, `Patch`, `Off`, `Uniform`, `Plain`, `Noise`. `str` of one is the Python that
            makes it. `Patch` needs a model with the method `unrolled`, as `mixing_matrix` does.

    Yields:
        The model.

    Raises:
        UsageError: the model has no connection or several, is inside `intervene` already, or a change does not fit.
    """
    with replaced(model, prepared(model, changes)):
        yield model


def prepared(model: Any, changes: Iterable[Change], watch: Watch = lambda site, reading: None) -> Intervened:
    """The model's connection under changes, with the sources that they need of other prompts. Raises as `intervene`."""
    connection, listed = connection_in(model), tuple(changes)
    for change in listed:
        if not isinstance(change, Change):
            raise UsageError(f"{change!r} is no change; give each by itself, such as Mute(3)")
        change.check(connection.sublayers)
    prompts = {change.ids for change in listed if isinstance(change, Patch)}
    others = {prompt: sources_of(model, prompt) for prompt in prompts}
    with at_hand(connection, model):
        return Intervened(connection, listed, others, watch)


@contextmanager
def replaced(model: Any, intervened: Intervened) -> Iterator[None]:
    """Put it in the place of the model's connection, and keep it told where the text's next tokens stand."""
    with ExitStack() as joined:
        if _has_none(model):
            from attnres.hf.released import joined as through

            joined.enter_context(through(model, intervened.inner))
        holder, name = _place(model)
        inner = getattr(holder, name)
        joined.enter_context(told_positions(holder, name))
        setattr(holder, name, intervened)
        try:
            yield
        finally:
            setattr(holder, name, inner)


def connection_in(model: Any) -> Connection:
    """The one connection of a model, be it that of its own code. Raises as `intervene`."""
    if _has_none(model):
        from attnres.hf.released import joined_connection

        return joined_connection(model)
    holder, name = _place(model)
    return getattr(holder, name)


def _has_none(model: Any) -> bool:
    """Whether its residual is written into its code, as that of transformers' own models."""
    return is_of_transformers(model) and not any(_places(model))


@torch.no_grad()
def differs_by_channel(connection: Connection) -> bool:
    """Whether the rule may have other weights in other channels."""
    widths: list[int] = []
    seen = Intervened(connection, watch=lambda _, reading: widths.append(reading.rows[0].weights[0].shape[-1]))
    values = seen.start(torch.zeros(1, connection.dim, device=device_of(connection)))
    seen.readout(seen.run(values, [lambda h, *_: h.clone()] * connection.sublayers))
    return max(widths) > 1


def ids_for(model: Any, name: str, tokens: Any) -> list[int]:
    """List the ids of one text for the model. name: what the message calls them. Raises UsageError for others."""
    text = list_of_ids(name, tokens)
    config = getattr(model, "config", None)
    size = getattr(getattr(config, "get_text_config", lambda: config)(), "vocab_size", math.inf)
    if not all(0 <= each < size for each in text):
        raise UsageError(f"{name} must be ids from 0 to {size - 1}, not {text}")
    return text


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Let a model be in evaluation mode meanwhile: what is drawn is no effect of a change."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def sources_of(model: Any, tokens: Iterable[int]) -> list[Tensor]:
    """The sources v_0 .. v_L of one text, [time, dim] each, of the model as it is but for its dropout."""
    ids = ids_for(model, "prompt", tokens)
    sources: list[Tensor] = []

    def recorded(sublayer: Sublayer) -> Sublayer:
        def call(*reads: Tensor) -> Tensor:
            sources.append(sublayer(*reads))
            return sources[-1]

        return call

    with without_dropout(model):
        connection, x, sublayers = unrolled(model, torch.tensor([ids], device=device_of(model)))
        sources.append(x)
        with at_hand(connection, model):
            connection.run(connection.start(x), [recorded(sublayer) for sublayer in sublayers])
    return [source[0] for source in sources]


def _place(model: Any) -> tuple[Any, str]:
    """The module that holds the model's connection, and the attribute."""
    found = list({(id(holder), name): (holder, name) for holder, name in _places(model)}.values())
    if len(found) != 1:
        how = "it must hold one, which attnres.hf.attach puts into a Hugging Face model"
        raise UsageError(f"the {type(model).__name__} holds {len(found)} connections; {how}")
    holder, name = found[0]
    if isinstance(getattr(holder, name), Intervened):
        raise UsageError("the model is under changes already; give all of them to one intervene(model, ...)")
    return holder, name


def _places(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for name, child in module.named_children():
        # PEFT's modules_to_save put a wrapper in the connection's place, which passes on what it is asked for.
        if isinstance(child, Connection) or isinstance(getattr(child, "original_module", None), Connection):
            yield module, name
        else:
            yield from _places(child)


def _parts(values: Values, site: int) -> tuple[Values, Values, Values, Tensor]:
    """The sources, the rule's values, those of its tags, the positions."""
    sources, rest = values[: site + 1], values[site + 1 : -1]
    return sources, rest[: len(rest) // 2], rest[len(rest) // 2 :], values[-1]

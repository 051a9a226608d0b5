"""What the server answers: each request as a piece of work on one model."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnres.analysis import (
    Change,
    Mute,
    Off,
    Patch,
    Pin,
    Plain,
    Scale,
    Trace,
    Uniform,
    explain,
    removal_effects,
    trace,
)
from attnres.analysis.interventions import prepared, replaced
from attnres.data import StreamDecoder
from attnres.errors import UsageError, first_line
from attnres.generate import sample
from attnres.look import messages as m
from attnres.look.subject import CachedDecoder, Subject
from attnres.look.wire import array
from attnres.look.work import Steps, WorkItem

LIKELIEST = 5
KEPT_TRACES, KEPT_BYTES = 6, 2**28
MAX_TOKENS, NEW_TOKENS = 1024, 40

CHANGES: dict[object, type[Change]] = {of.__name__: of for of in (Mute, Off, Patch, Pin, Plain, Scale, Uniform)}


class Seen:
    """A view, looked up: the model, the tokens, the changes; and what is traced of it."""

    def __init__(self, subject: Subject, view: m.View, piece: WorkItem) -> None:
        self.subject, self.view, self.piece = subject, view, piece
        self.step = subject.step(view.step)
        self.checksums, self.model = subject.checksums(self.step), subject.model(self.step)
        self.ids = subject.encode(view.text)
        self.most = min(subject.context, MAX_TOKENS)
        if len(self.ids) > self.most:
            has = f"the text has {len(self.ids):,} tokens"
            raise UsageError(f"{has} and {subject.entry.name} takes {self.most:,}; shorten it")
        self.changes = [as_change(subject, change) for change in view.changes]

    def traced(self, changes: Sequence[Change] | None = None) -> Trace:
        held = self.changes if changes is None else changes

        def on_site(site: int) -> None:
            self.piece.check()
            self.piece.progress = m.Progress("sublayers", site, sites)

        def make() -> Trace:
            return trace(self.model, self.ids, held, self.view.read, on_site)

        sites = self.subject.sublayers + 1
        key = ("trace", self.step, self.checksums, tuple(self.ids), tuple(map(str, held)), self.view.read)
        size = 4 * len(self.ids) * (self.subject.vocab_size + sites * sites)  # far the most of it
        return self.subject.remembered(key, make, max(2, min(KEPT_TRACES, KEPT_BYTES // (1 + size))))


def as_change(subject: Subject, told: Mapping[str, object]) -> Change:
    """The change of `attnres.analysis`. Raises UsageError, as that does, where it is none."""
    arguments = dict(told)
    if (of := CHANGES.get(arguments.pop("kind", None))) is None:
        raise UsageError(f"a change is one of {', '.join(map(str, CHANGES))}, not {told.get('kind')!r}")
    if "prompt" in arguments:
        arguments["prompt"] = _prompt(subject, str(arguments["prompt"]))
    try:
        return of(**arguments)
    except TypeError as error:
        raise UsageError(f"this is no {of.__name__} ({first_line(error)}); reload the page") from None


def _prompt(subject: Subject, text: str) -> list[int]:
    ids = subject.encode(text)
    if not 1 <= len(ids) <= subject.context:
        raise UsageError(f"the other prompt has {len(ids)} tokens; give 1 to {subject.context}")
    return ids


def look(subject: Subject, request: m.Look, piece: WorkItem) -> Steps:
    """Answer with a Picture."""
    seen = Seen(subject, request.view, piece)
    changes, text = seen.changes, request.view.text
    python = subject.python(text, request.view.step, changes) if changes else ""
    sources = subject.sublayers + 1
    if not seen.ids:
        empty = array(torch.zeros(0, sources * (sources + 1) // 2)), array(torch.zeros(0, sources))
        yield m.Picture(seen.step, (), (), None, None, (), *empty, python)
        return
    traced = seen.traced()
    losses = traced.losses.tolist()
    mean = traced.losses.mean().item() if losses else None
    unchanged = None
    if changes and losses:
        yield None
        unchanged = seen.traced(()).losses.mean().item()
    rows, columns = torch.tril_indices(sources, sources)
    yield m.Picture(
        step=seen.step,
        tokens=tokens_of(subject, text, seen.ids),
        loss=(None, *losses),
        mean_loss=mean,
        unchanged_loss=unchanged,
        next=tuple(likeliest(subject, logits) for logits in traced.logits),
        weights=array(traced.weights[:, rows, columns]),
        size=array(traced.sources.square().mean(-1).sqrt().T),
        python=python,
    )


def explanation(subject: Subject, request: m.Explain, piece: WorkItem) -> Steps:
    """Answer with an Explanation."""
    seen = Seen(subject, request.view, piece)
    position, traced = request.position, seen.traced()
    yield None
    following = seen.ids[position + 1] if position + 1 < len(seen.ids) else int(traced.logits[position].argmax())
    target = following if request.target is None else request.target
    told = explain(seen.model, traced, position, target, seen.changes, request.view.read)
    probabilities = told.logits.softmax(-1)
    lens = tuple(
        m.LensRow(likeliest(subject, logits), float(of_all[target]), float(logits[target]))
        for logits, of_all in zip(told.logits, probabilities, strict=True)
    )
    rows, columns = torch.tril_indices(*told.sizes.shape)
    size, share = (tuple(table[rows, columns].tolist()) for table in (told.sizes, told.shares))
    word = m.Likely(target, shown(subject, target), lens[-1].probability)
    yield m.Explanation(position, word, size, share, tuple(told.rest.tolist()), lens)


def remove(subject: Subject, request: m.Remove, piece: WorkItem) -> Steps:
    """Answer with an Effect per source."""
    seen = Seen(subject, request.view, piece)
    sources = range(request.site + 1)
    site = request.site
    effects = removal_effects(seen.model, seen.ids, sources, seen.changes, site, on_site=lambda _: piece.check())
    for effect in effects:
        yield m.Effect(effect.source, effect.removed, statistics.mean(effect.random))


def go_on(subject: Subject, request: m.Continue, piece: WorkItem) -> Steps:
    """Answer with one Drawn per token of the continuation, then Ended."""
    if not 0 <= request.temperature <= 100:
        raise UsageError("temperature is 0 to 100")
    seen = Seen(subject, request.view, piece)
    if not seen.ids:
        raise UsageError("the text is empty; write something to go on from")
    tokenizer = subject.tokenizer
    stream, generator = StreamDecoder(tokenizer, seen.ids), torch.Generator().manual_seed(0)
    decoder = CachedDecoder(seen.model)
    connection = prepared(seen.model, seen.changes, lambda *_: piece.check())
    new = seen.ids
    for _ in range(NEW_TOKENS):
        if decoder.length + len(new) >= seen.most:  # the text with one more could not be looked at
            yield m.Ended("context", stream.finish())
            return
        with replaced(seen.model, connection):
            logits = decoder.feed(new)
        if not logits.isfinite().all():
            raise UsageError("under these changes the model's answer is not finite; pin or scale to less")
        token = int(sample(logits[None].float().cpu(), request.temperature, None, None, generator))
        if token in subject.ends:
            yield m.Ended("end of text", stream.finish())
            return
        drawn = m.Token(token, shown(subject, token))
        probability = float(logits.float().softmax(-1)[token])
        yield m.Drawn(drawn, stream.feed(token), probability, likeliest(subject, logits))
        new = [token]
    yield m.Ended("count", stream.finish())


def tokens_of(subject: Subject, text: str, ids: Sequence[int]) -> tuple[m.Token, ...]:
    """The tokens of a text with the characters that they cover; a part of a character is shown as its bytes."""
    spans = subject.spans(text)
    found = []
    for at, (token, span) in enumerate(zip(ids, spans, strict=True)):
        whole = span[0] < span[1] and span not in spans[max(0, at - 1) : at] + spans[at + 1 : at + 2]
        found.append(m.Token(token, text[slice(*span)] if whole else shown(subject, token), *span))
    return tuple(found)


def shown(subject: Subject, token: int) -> str:
    """One token by itself: its text, with bytes that are none in hex."""
    if token >= subject.tokenizer.vocab_size:  # a model's vocabulary is often padded
        return f"<{token}>"
    return subject.tokenizer.piece(token).decode("utf-8", errors="backslashreplace")


def likeliest(subject: Subject, logits: Tensor) -> tuple[m.Likely, ...]:
    """The likeliest tokens, most likely first."""
    top = logits.float().softmax(-1).topk(min(LIKELIEST, len(logits)))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return tuple(m.Likely(token, shown(subject, token), probability) for token, probability in pairs)

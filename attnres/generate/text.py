"""Continue a prompt, piece by piece, and say why the text ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from attnres.data import StreamDecoder, Tokenizer
from attnres.errors import UsageError
from attnres.generate.decode import generate
from attnres.model import Transformer

End = Literal["tokens", "context", "end of text", "stop"]
"""All tokens asked for; the model's context is full; the model ended its text; one of the stops."""


class Continuation:
    """An iterator over the pieces of text after a prompt, each as soon as it is certain.

    tokens: how many at most. stops: texts that end it, left out themselves. sampling: as `generate` takes it. Raises
    UsageError as `generate` does, and on an empty stop.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        prompt: str,
        tokens: int,
        stops: Sequence[str] = (),
        **sampling: Any,
    ) -> None:
        if "" in stops:
            raise UsageError("a stop is empty; give it at least one character")
        self.end: End = "tokens"
        self.drawn = 0
        """New tokens so far."""
        self._tokenizer, self._stops, self._asked = tokenizer, tuple(stops), tokens
        self._prompt = tokenizer.encode(prompt)
        self._ids = generate(model, self._prompt, tokens, **sampling)

    def __iter__(self) -> Iterator[str]:
        decoder, held = StreamDecoder(self._tokenizer, self._prompt), ""
        for token in self._ids:
            self.drawn += 1
            if token == self._tokenizer.end:
                self.end = "end of text"
                break
            text = held + decoder.feed(token)
            if found := [at for stop in self._stops if (at := text.find(stop)) >= 0]:
                self.end = "stop"
                yield text[: min(found)]
                return
            held = text[len(text) - self._uncertain(text) :]
            yield text[: len(text) - len(held)]
        else:
            self.end = "tokens" if self.drawn == self._asked else "context"
        yield held + decoder.finish()

    def _uncertain(self, text: str) -> int:
        """How many characters at the end may be the beginning of a stop."""
        lengths = (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(lengths, default=0)

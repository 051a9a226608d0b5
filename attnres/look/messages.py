"""What the page and the server say to each other: every message, with its shapes.

The page asks with GET /api/session and POST /api/COMMAND, whose body is one request below as JSON. Every answer to a
POST is a stream of lines (application/x-ndjson): one JSON object per line, its class's name in lower case as "kind".
Each request says which kinds answer it; any stream may hold `Progress` anywhere and may end early with
one `Failure`. Closing the stream stops the work. Requests carry all that they mean, nothing is kept between them but
caches: a page that is reloaded asks again and goes on.

Every request has the token of the address in the header "X-Attnres-Token".

Sites 0 .. L-1 are the inputs of the sublayers and site L the readout; source 0 is the embedding and source i + 1 the
output of sublayer i, so site l can read sources 0 .. l. T tokens; V ids of the vocabulary.
A triangle is [.., (L + 1)(L + 2) / 2]: row l begins at l (l + 1) / 2 and has l + 1 entries, sources 0 .. l.
Numbers that are not finite are null in lists and NaN in arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# The page to the server.


@dataclass(frozen=True)
class View:
    """What is looked at: a model, a text, the changes. A part of most requests."""

    model: str
    """`ModelEntry.id`."""
    text: str
    step: int | None = None
    """One of `ModelEntry.steps`; null is the newest."""
    changes: tuple[dict[str, object], ...] = ()
    """What depth reads otherwise, in this order: each a "kind", such as "Mute", and what that class of
    `attnres.analysis` takes; of a Patch the prompt as text."""
    read: int | None = None
    """Where sites read several mixtures (`ModelEntry.reads`): which one is shown; null is their mean."""


@dataclass(frozen=True)
class Look:
    """POST /api/look -> Picture."""

    view: View


@dataclass(frozen=True)
class Explain:
    """POST /api/explain -> Explanation."""

    view: View
    position: int
    """0 .. T - 1."""
    target: int | None = None
    """The id whose logit is taken apart; null is the token that follows, or the likeliest at the last position."""


@dataclass(frozen=True)
class Remove:
    """POST /api/remove -> one Effect per source that the site can read, as they come."""

    view: View
    site: int
    """Where the source is removed, at all tokens."""


@dataclass(frozen=True)
class Continue:
    """POST /api/continue -> one Drawn per token, then Ended."""

    view: View
    temperature: float = 0.8
    """0 takes the likeliest."""


# The server to the page.


@dataclass(frozen=True)
class Array:
    """Numbers in bulk: little-endian float32, row by row, in base64."""

    shape: tuple[int, ...]
    float32: str


@dataclass(frozen=True)
class ModelEntry:
    """One model that can be looked at."""

    id: str
    """What it is asked for by: the same in every session that has it, and no other model's."""
    name: str
    """Short, unique in its session."""
    connection: str
    """Canonical, such as "block:block_size=8"."""
    description: str
    """One line: sizes, steps, where from."""
    sites: tuple[str, ...]
    """L + 1 names, the last is "readout"."""
    sources: tuple[str, ...]
    """L + 1 names, the first is "embedding"."""
    reads: tuple[int, ...]
    """L + 1: how many mixtures each site reads (q, k and v apart); 1 nearly always."""
    per_channel: bool
    """Whether weights differ by channel; the picture then shows their mean, and an Explanation's sizes are exact."""
    tokens: str
    """The same where ids stand for the same tokens."""
    steps: tuple[int, ...]
    """The checkpoints that can be looked at, oldest first; one entry where there is but one."""
    training: bool
    """Whether the run is going on."""


@dataclass(frozen=True)
class Session:
    """GET /api/session."""

    models: tuple[ModelEntry, ...]
    text: str
    """To begin with."""


@dataclass(frozen=True)
class Progress:
    """Work goes on: done of total, in the unit that `what` names."""

    what: str
    done: float
    total: float


@dataclass(frozen=True)
class Failure:
    """The last line of a stream that could not be finished: one line that says what is wrong and what to do."""

    message: str


@dataclass(frozen=True)
class Token:
    """A token of the text, or one that might follow."""

    id: int
    text: str
    """What to show. A part of a character is "\\xf0", its bytes in hex; control characters are as they are."""
    start: int | None = None
    stop: int | None = None
    """The characters of the text (code points) that it covers; the tokens of one character share them."""


@dataclass(frozen=True)
class Likely:
    """A token that may come next."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class Picture:
    """A text as the model reads it."""

    step: int
    """Whose weights read it: one of `ModelEntry.steps`, or newer than the page knows."""
    tokens: tuple[Token, ...]
    """T of them; T = 0 for an empty text, and then all below is empty too."""
    loss: tuple[float | None, ...]
    """T: nats of token t given those before it; the first is null."""
    mean_loss: float | None
    """Over all but the first token."""
    unchanged_loss: float | None
    """The mean loss without changes; null where there are none, or no loss."""
    next: tuple[tuple[Likely, ...], ...]
    """T rows of the likeliest next tokens, most likely first."""
    weights: Array
    """[T, triangle]: M, the weight with which site l reads source i; changes included."""
    size: Array
    """[T, L + 1]: |v_i|, the root of the mean square over channels."""
    python: str
    """The changes as Python that does the same; "" where there are none."""


@dataclass(frozen=True)
class LensRow:
    """What the readout would say after a site: its final norm and head on what the site reads."""

    likeliest: tuple[Likely, ...]
    probability: float
    """The target's."""
    logit: float
    """The target's."""


@dataclass(frozen=True)
class Explanation:
    """One token: where each site's input comes from, and what each source adds to the target's logit."""

    position: int
    target: Likely
    size: tuple[float | None, ...]
    """triangle: |M v|, the root of the mean square over channels of what source i brings to site l."""
    share: tuple[float | None, ...]
    """triangle: the part of `lens[l].logit` that source i brings, under the norm's scale at this token."""
    rest: tuple[float | None, ...]
    """L + 1: lens[l].logit less the sum of row l's shares: biases, softcaps, rounding. 0 closes exactly."""
    lens: tuple[LensRow, ...]
    """L + 1; the last is the model's own answer."""


@dataclass(frozen=True)
class Effect:
    """What removing a source costs, in nats of the mean loss over the text."""

    source: int
    removed: float
    """Mean loss without it minus mean loss."""
    random: float
    """The same for a random vector as large as the source taken out instead: mean of a few."""


@dataclass(frozen=True)
class Drawn:
    """One more token of the continuation."""

    token: Token
    """start and stop are null."""
    text: str
    """The characters that it completes; "" in the middle of one."""
    probability: float
    """The token's."""
    likeliest: tuple[Likely, ...]


@dataclass(frozen=True)
class Ended:
    """The continuation is done."""

    reason: Literal["count", "context", "end of text"]
    text: str
    """What is left of an unfinished character."""


Message = Progress | Failure | Picture | Explanation | Effect | Drawn | Ended

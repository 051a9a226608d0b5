"""Changes of what depth reads, against their definition written out in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnres import Connection, mixing_matrix
from attnres.analysis import Change, Mute, Noise, Off, Patch, Pin, Plain, Scale, Uniform
from attnres.analysis.interventions import Intervened
from attnres.connections import output_of
from tests.depth import DIM, make_sublayers, randomised

SITES = 5
OTHER = (5, 1, 9)
"""The prompt of patches, shorter than the texts."""

CASES: dict[str, list[Change]] = {
    "mute": [Mute(2)],
    "mute one site": [Mute(0, sites=3)],
    "mute some tokens": [Mute(1, tokens=[1, 2])],
    "scale": [Scale(2, by=-1.5, sites=[2, 4])],
    "pin": [Pin(1, weight=0.7, sites=range(2, 5)), Pin(3, weight=2)],
    "uniform": [Uniform(sites=[4, SITES])],
    "plain": [Plain(tokens=0)],
    "off": [Off(3), Off(5, tokens=2)],
    "patch where it enters": [Patch(2, prompt=OTHER)],
    "patch the embedding": [Patch(0, prompt=OTHER, tokens=[0, 3])],
    "patch where it is read": [Patch(2, prompt=OTHER, sites=[2, 4])],
}
ALL = [
    *[Uniform(), Scale(1, by=3, tokens=[0, 2]), Mute(0, sites=4), Pin(2, weight=-1, sites=3), Off(4)],
    *[Patch(1, prompt=OTHER, sites=[3, 5]), Patch(2, prompt=OTHER, tokens=[1, 3]), Plain(sites=2, tokens=1)],
]


def by_definition(connection: Connection, x: Tensor, sublayers, changes, others) -> list[Tensor]:
    """The inputs h_0 .. h_L, a mean over reads: rows of M from `mixing_matrix`, and the sum over sources in words."""
    time = x.shape[-2]

    def holds(change: Change) -> Tensor:
        tokens = getattr(change, "tokens", None)
        return torch.tensor([[tokens is None or t in tokens] for t in range(time)])

    def swapped(vector: Tensor, change: Patch) -> Tensor:
        vector = vector.clone()
        for t in range(min(time, len(OTHER))):
            if holds(change)[t]:
                vector[..., t, :] = others[change.source][t]
        return vector

    def entering(source: int, vector: Tensor) -> Tensor:
        for change in changes:
            if isinstance(change, Off) and change.source == source:
                vector = torch.where(holds(change), 0.0, vector)
            if isinstance(change, Patch) and change.sites is None and change.source == source:
                vector = swapped(vector, change)
        return vector

    sources, inputs = [entering(0, x)], []
    for site in range(connection.sublayers + 1):
        outputs = [*sources[1:], *[torch.zeros_like(x)] * (connection.sublayers - site)]
        replay = [lambda *_, y=y: y for y in outputs]
        matrix = mixing_matrix(connection, sources[0], replay, per_channel=True, per_read=True)
        reads = []
        for read in range(connection.reads(site)):
            row = [matrix[..., read, site, i, :] for i in range(site + 1)]
            vectors = list(sources)
            for change in changes:
                if isinstance(change, Off) or (change.sites is not None and site not in change.sites):
                    continue
                i, where = getattr(change, "source", 0), holds(change)
                if i > site:
                    continue
                if isinstance(change, Mute):
                    row[i] = torch.where(where, 0.0, row[i])
                elif isinstance(change, Scale):
                    row[i] = torch.where(where, change.by * row[i], row[i])
                elif isinstance(change, Pin):
                    row[i] = torch.where(where, float(change.weight), row[i])
                elif isinstance(change, Uniform):
                    mean = torch.stack(row).mean(0)
                    row = [torch.where(where, mean, m) for m in row]
                elif isinstance(change, Plain):
                    row = [torch.where(where, 1.0, m) for m in row]
                elif isinstance(change, Patch) and change.sites is not None:
                    vectors[i] = swapped(vectors[i], change)
            reads.append(sum(m * v for m, v in zip(row, vectors, strict=True)))
        inputs.append(torch.stack(reads).mean(0))
        if site < connection.sublayers:
            sources.append(entering(site + 1, output_of(sublayers[site], tuple(reads))))
    return inputs


def assert_as_defined(name: str, changes: list[Change]) -> None:
    connection, sublayers = randomised(name, sublayers=SITES).double(), make_sublayers(sublayers=SITES)
    x = torch.randn(1, 4, DIM, dtype=torch.float64)
    others = [torch.randn(len(OTHER), DIM, dtype=torch.float64) for _ in range(SITES + 1)]
    seen: list[Tensor] = []
    changed = Intervened(connection, changes, {OTHER: others}, lambda _, r: seen.append(torch.stack(r.inputs).mean(0)))
    with torch.no_grad():
        changed.readout(changed.run(changed.start(x), sublayers))
        expected = by_definition(connection, x, sublayers, changes, others)
    for h, right in zip(seen, expected, strict=True):
        torch.testing.assert_close(h, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        *["full:window=3,reads=qkv-gate-up", "full:query=input,heads=3", "block:block_size=3,total=true", "highway"],
        *["postnorm", "hc", "haares:reads=qkv", "denseformer"],
    ],
)
def test_a_site_reads_what_the_definition_says(name):
    assert_as_defined(name, ALL)


@pytest.mark.parametrize("case", CASES)
def test_every_change_is_what_the_definition_says(case):
    assert_as_defined("delta:reads=qkv", CASES[case])


def test_no_change_is_no_change_and_gradients_are_those_of_the_rule():
    for name in ("block", "delta:reads=qkv", "hc", "haares", "postnorm"):
        connection, sublayers = randomised(name, sublayers=SITES).double(), make_sublayers(sublayers=SITES)
        found = []
        for rule in (connection, Intervened(connection)):
            x = torch.linspace(-1, 1, 3 * DIM).double().reshape(1, 3, DIM).requires_grad_()
            h = rule.readout(rule.run(rule.start(x), sublayers))
            found.append((h, *torch.autograd.grad(h.square().sum(), [x, *connection.parameters()], allow_unused=True)))
        for plain, under in zip(*found, strict=True):
            if plain is not None:
                torch.testing.assert_close(under, plain, rtol=1e-9, atol=1e-9)


def test_noise_takes_out_a_vector_as_long_as_the_source_and_the_same_at_every_site():
    connection, sublayers, x = (
        randomised("full", sublayers=SITES),
        make_sublayers(sublayers=SITES),
        torch.randn(1, 4, DIM),
    )
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def watch(site, reading):
        if site >= 2:
            seen.append((reading.h - reading.inputs[0], reading.rows[0].weights[2], reading.sources[2]))

    changed = Intervened(connection, [Noise(2, seed=1)], watch=watch)
    changed.readout(changed.run(changed.start(x), sublayers))
    taken = [difference / weight for difference, weight, _ in seen]
    torch.testing.assert_close(taken[0].norm(dim=-1), seen[0][2].norm(dim=-1), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(taken[0], taken[-1], rtol=1e-2, atol=1e-3)
    assert (torch.cosine_similarity(taken[0], seen[0][2], dim=-1).abs() < 0.95).all()

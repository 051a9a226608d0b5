"""The cost model against counting, against a model's own values, and against what is known of the schedules."""

import json
import re
import shlex
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.pipelining import schedules

from attnres.analysis.cluster import most_kept
from attnres.analysis.cost import (
    Plan,
    cached_total,
    counted_transfers,
    formula_transfers,
    memory_traffic,
    naive_total,
)
from attnres.analysis.timeline import EFFORT, schedule_actions, simulate
from attnres.cli import main
from attnres.connections import make_connection
from attnres.errors import UsageError
from attnres.parallel.schedule import chunk_sites, even_cuts
from attnres.report.cost import _milliseconds


def test_memory_traffic_is_the_specifications_table():
    rows = memory_traffic(dim=7168, block_size=16, blocks=Fraction(128, 16), streams=4)
    assert [(row.connection, row.formula) for row in rows] == [
        ("residual", "3d"),
        ("mhc", "(8m + 2)d + 2m^2 + 4m"),
        ("full, two-phase", "(S + N)d"),
        ("block, two-phase", "(N/S + 5)d"),
    ]
    assert [round(row.units, 1) for row in rows] == [3, 34, 24, 5.5]
    assert rows[1].units * 7168 == pytest.approx(34 * 7168 + 48)


def test_formulas_are_the_sum_of_their_transitions():
    for plan in product(range(1, 9), range(1, 6), (Fraction(1, 4), Fraction(1), Fraction(3))):
        transfers = formula_transfers(*plan)
        assert (sum(transfers.naive), sum(transfers.cached)) == (naive_total(*plan), cached_total(*plan)), plan


@pytest.mark.parametrize(("pipeline", "virtual", "new_blocks"), [(2, 1, 1), (3, 2, 2), (4, 3, 1)])
def test_counted_is_the_formula_the_embedding_and_what_is_not_sent_back(pipeline, virtual, new_blocks):
    """In chunks of whole blocks no partial is open, and the two differ by these alone."""
    chunks = pipeline * virtual
    sites = chunk_sites(chunks * new_blocks * 4, even_cuts(chunks * new_blocks * 4, chunks))
    counted, formula = (
        counted_transfers(sites, 4, pipeline),
        formula_transfers(pipeline, virtual, Fraction(new_blocks)),
    )
    assert [c - f for c, f in zip(counted.naive, formula.naive, strict=True)] == [1] * (chunks - 1)
    returned = [1 if chunk < pipeline else -new_blocks for chunk in range(1, chunks)]
    assert [c - f for c, f in zip(counted.cached, formula.cached, strict=True)] == returned


@pytest.mark.parametrize(("pipeline", "virtual"), [(2, 3), (4, 2)])
@pytest.mark.parametrize("block_size", [1, 4])
def test_counted_is_what_the_connections_values_are(pipeline, virtual, block_size):
    """Run the connection; a tensor that the receiving rank has held before need not be sent again."""
    connection = make_connection("block", dim=4, sites=26, block_size=block_size)
    sites = chunk_sites(26, even_cuts(26, pipeline * virtual))
    held: list[dict[int, torch.Tensor]] = [{} for _ in range(pipeline)]
    values = connection.start(torch.randn(2, 4))
    naive, cached = [], []
    for chunk, of_chunk in enumerate(sites):
        here = held[chunk % pipeline]
        if chunk:
            naive.append(len(values))
            cached.append(sum(id(tensor) not in here for tensor in values))
        here |= {id(tensor): tensor for tensor in values}
        for site in of_chunk:
            values = connection.scatter(values, None, site, values[0], torch.randn(2, 4))
            here |= {id(tensor): tensor for tensor in values}
    counted = counted_transfers(sites, block_size, pipeline)
    assert (counted.naive, counted.cached) == (naive, cached)


@pytest.mark.parametrize(("pipeline", "micro_batches"), [(1, 4), (2, 8), (4, 12)])
def test_simulated_steps_are_the_known_ones(pipeline, micro_batches):
    """Without transfers 1F1B idles P - 1 chunks' forward and backward, interleaved V times less (2104.04473)."""
    for schedule, virtual in (("1f1b", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 4)):
        actions = schedule_actions(schedule, pipeline, virtual, micro_batches)
        chunk = 1 / (pipeline * virtual)
        step = simulate(actions, [chunk] * pipeline * virtual, [0.0] * pipeline * virtual)
        assert step.seconds == pytest.approx(3 * (micro_batches + (pipeline - 1) / virtual) / pipeline)
        assert step.busy == pytest.approx(3 * micro_batches / pipeline / step.seconds)


@pytest.mark.parametrize(("schedule", "virtual"), [("1f1b", 1), ("interleaved-1f1b", 3), ("zero-bubble", 2)])
def test_a_timeline_respects_every_dependency(schedule, virtual):
    pipeline, micro_batches = 4, 8
    chunks = pipeline * virtual
    forward = torch.rand(chunks).tolist()
    transfer = torch.rand(chunks).tolist()
    step = simulate(schedule_actions(schedule, pipeline, virtual, micro_batches), forward, transfer)
    ran = {span.action: span for spans in step.ranks for span in spans}
    kinds = {action.kind for action in ran}
    assert len(ran) == chunks * micro_batches * len(kinds)
    assert kinds == (
        {"forward", "input gradient", "weight gradient"} if schedule == "zero-bubble" else {"forward", "backward"}
    )
    for rank, spans in enumerate(step.ranks):
        assert all(one.end <= other.start for one, other in pairwise(spans))
        assert all(span.action.chunk % pipeline == rank for span in spans)
    for action, span in ran.items():
        assert span.end - span.start == pytest.approx(forward[action.chunk] * EFFORT[action.kind])
        if action.kind == "weight gradient":
            assert ran[action._replace(kind="input gradient")].end <= span.start
        elif action.kind == "forward" and action.chunk:
            assert ran[action._replace(chunk=action.chunk - 1)].end + transfer[action.chunk] <= span.start + 1e-9
        elif action.kind != "forward" and action.chunk < chunks - 1:
            assert ran[action._replace(chunk=action.chunk + 1)].end + transfer[action.chunk + 1] <= span.start + 1e-9


@pytest.mark.parametrize(("pipeline", "virtual", "micro_batches"), [(1, 2, 3), (3, 1, 9), (4, 3, 10), (4, 2, 3)])
def test_orders_are_those_of_torchs_schedules(pipeline, virtual, micro_batches):
    kinds = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
    stage = SimpleNamespace(group_rank=0, group_size=pipeline, num_stages=pipeline * virtual, submod=None)
    for name, cls in (
        ("interleaved-1f1b", schedules.ScheduleInterleaved1F1B),
        ("zero-bubble", schedules.ScheduleInterleavedZeroBubble),
    ):
        theirs = cls([stage] * virtual, micro_batches).pipeline_order
        for rank, ours in enumerate(schedule_actions(name, pipeline, virtual, micro_batches)):
            order = [a for a in theirs[rank] if a is not None and a.computation_type.value in kinds]
            assert ours == [(kinds[a.computation_type.value], a.stage_index, a.microbatch_index) for a in order]


def test_ranks_that_the_micro_batches_do_not_suit_are_left_out():
    assert [plan.pipeline for plan in Plan(pipeline=3, virtual=2, micro_batches=9).with_pipelines()] == [8]


def test_no_number_is_too_long_to_read(capsys):
    assert main(["cost", "--tflops", "1e-12", "--dim", "1000000000"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, re.findall(r"[0-9,.e+]+", printed))) < 16 and "…" not in printed


def test_one_link_carries_one_message_at_a_time():
    actions = schedule_actions("1f1b", 2, 1, 2)
    step = simulate(actions, [1.0, 1.0], [0.0, 5.0])
    assert [span.start for span in step.ranks[1]] == [6.0, 7.0, 11.0, 12.0]


@pytest.mark.parametrize(
    ("connection", "schedule"),
    [
        ("residual", "interleaved-1f1b"),
        ("block, cached", "interleaved-1f1b"),
        ("block, naive", "zero-bubble"),
        ("block, cached", "zero-bubble"),
    ],
)
def test_what_a_rank_keeps_is_what_a_walk_through_the_schedule_counts(connection, schedule):
    """Name every tensor that is kept, micro-batch by micro-batch, and count names."""
    plan = Plan(layers=24, block_size=3, dim=4, pipeline=2, virtual=3, micro_batches=6, schedule=schedule)
    most = 0
    for rank in plan.actions():
        kept: dict[tuple, set] = {}
        for kind, chunk, micro_batch in rank:
            sites, place = plan.sites[chunk], (micro_batch, chunk)
            if kind == "forward":
                blocks = {("block", n) for n in range(1 + sites[-2] // 3)}
                inputs = {("input", site) for site in sites[::2] if connection == "residual" or site % 3}
                owner = None if connection == "block, cached" else chunk  # with the cache a rank has one of each
                names = inputs if connection == "residual" else inputs | {(owner, *block) for block in blocks}
                kept[place] = {(micro_batch, *name) for name in names}
            else:
                if connection == "block, cached":
                    sent_later = range(1 + plan.sites[chunk - 2].stop // 3) if chunk >= 2 else ()
                    kept[micro_batch, "gradients"] = {(micro_batch, "gradient", n) for n in sent_later}
                if kind != "input gradient":
                    del kept[place]
            most = max(most, len(set().union(*kept.values())))
    assert most_kept(plan, connection) == most


@pytest.mark.slow
def test_the_documents_clusters_are_the_commands(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    document = (Path(__file__).parents[2] / "docs" / "DISTRIBUTED.md").read_text(encoding="utf-8").replace("\\\n", "")
    (line,) = [line for line in document.splitlines() if line.startswith("    attnres cost") and "--gpus" in line]
    assert main(shlex.split(line)[1:]) == 0
    printed = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]
    written = [
        row.strip("| ").split(" | ") for row in document.splitlines() if re.match(r"\| [\d,]+ \| (res|block)", row)
    ]
    assert len(written) == 9 and all(" ".join(row) in printed for row in written)


def test_clusters_are_in_the_record_and_halve_with_every_doubling(tmp_path):
    out = tmp_path / "cost.json"
    plan = ["--layers", "16", "--block-size", "4", "--dim", "64", "--pipeline", "2", "--virtual", "2"]
    assert main(["cost", *plan, "--gpus", "8", "16", "--batch", "64", "--out", str(out)]) == 0
    few, many = (json.loads(out.read_text())["clusters"][place] for place in (1, 4))
    assert few["connection"] == many["connection"] == "block, cached" and (few["gpus"], many["gpus"]) == (8, 16)
    assert (few["micro_batches"], many["micro_batches"]) == (16, 8)
    assert few["stage_bytes"] == 2 * many["stage_bytes"]
    parameters = 6 * 64**2 * 16 / 2
    assert many["shard_bytes"] == 6 * parameters * 7 / 8 and many["weight_bytes"] == (6 + 16 / 8) * parameters


def test_the_command_prints_the_paper_and_writes_json(tmp_path, capsys):
    figure, out = tmp_path / "step.png", tmp_path / "cost.json"
    assert main(["cost", "--micro-batches", "8", "--figure", str(figure), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "124 = 7.28 GB" in printed and "55 = 3.23 GB" in printed and "34.01" in printed
    assert "C = 32 chunks, each of N_p = 0.25 blocks" in " ".join(printed.split())
    assert figure.read_bytes().startswith(b"\x89PNG")
    record = json.loads(out.read_text())
    assert record["pipeline"]["formula"] == {"naive": 124, "cached": 55}
    assert len(record["pipeline"]["counted_transitions"]["cached"]) == 31
    seconds = {name: step["seconds"] for name, step in record["step"].items()}
    assert seconds["residual"] <= seconds["block, cached"] <= seconds["block, naive"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cost.json", "step.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipeline", "64"], "256 chunks"),
        (["--schedule", "1f1b"], "one virtual stage"),
        (["--micro-batches", "11", "--pipeline", "4"], "use 8 or 12"),
        (["--link", "0"], "link must be positive"),
        (["--tflops", "nan"], "finite"),
        (["--block-size", "129"], "block_size 129"),
        (["--gpus", "12"], "gpus must be a multiple of the 8 ranks of --pipeline, not 12"),
        (["--gpus", "24"], "batch must be a multiple of the 3 pipelines on 24 gpus, not 4096"),
    ],
)
def test_bad_plans_are_one_line(arguments, message, capsys):
    assert main(["cost", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_plan_refuses_more_chunks_than_sublayers():
    with pytest.raises(UsageError, match=r"5 chunks .* more than 4 sublayers"):
        Plan(layers=4, block_size=2, pipeline=5, virtual=1)
    assert Plan(layers=10, block_size=4, pipeline=3, virtual=1).sites == [range(3), range(3, 6), range(6, 10)]


def test_short_times_have_digits():
    """Of a small model every time was 0.00 ms."""
    assert [_milliseconds(seconds, 2) for seconds in (2.349e-3, 0.1e-3, 2.11e-5, 0.0)] == [
        "2.35",
        "0.10",
        "0.0211",
        "0",
    ]
    assert [_milliseconds(seconds) for seconds in (1.2345, 1.63e-4, 2e6)] == ["1,234.5", "0.163", "2e+09"]

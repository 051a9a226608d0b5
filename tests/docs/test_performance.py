"""PERFORMANCE.md's numbers are those of the benches' records."""

from __future__ import annotations

import re

from attnres.bench import gpu
from attnres.bench.measure import NOT_MEASURED, Row
from tests.docs.records import README, ROOT, bench, bench_tables, number


def test_the_bench_is_its_record():
    shown = [row for row in bench_tables("The table", "The rules after Block") if re.match(r"\d|-", row[1])]
    measured = []
    for row in bench():
        if row["where"] == "one H100/H200-class GPU":  # rows of before, which that part of the bench has no more
            continue
        digits = 1 if row["must"].endswith("x") or row["must"] == "-" else 3
        ratio = row["ratio"]
        text = ratio if isinstance(ratio, str) else number(ratio, digits) + "x" * (digits == 1)
        measured.append((row["must"], row["aim"], text))
    assert sorted(tuple(row[1:]) for row in shown) == sorted(measured)


def test_the_gpu_s_rows_are_those_of_its_record():
    shown = [row for row in bench_tables("On a GPU") if len(row) == 4 and row[1] not in ("must", "---")]
    assert [tuple(row[1:3]) for row in shown] == [(goal.must, goal.aim) for goal in gpu.GOALS]
    checks = [row for row in bench("-gpu") if "worst error over what is allowed" in row["what"]]
    rows = bench("-gpu")[len(checks) :]
    for row, goal in zip(shown, gpu.GOALS, strict=True):
        assert row[0].split(" (")[0] in goal.what.removesuffix(", bf16")
        of_goal = (one for one in rows if one["what"].startswith(goal.what) and one["ratio"] != NOT_MEASURED)
        assert row[-1] == next((Row(**one).measured for one in of_goal), NOT_MEASURED)
    text = (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    assert all(row["ratio"] <= 1 for row in checks)
    assert f"all {sum(len(row['details']) for row in checks)} cases of the check pass" in text
    assert f"the worst at {max(row['ratio'] for row in checks):.2f} of what it may be off" in text
    *_, operator, _, backward = rows
    taken = {name: f"{value:.2f}" for name, value in operator["details"].items() if name.endswith(", ms")}
    fla, gluon = "fla-core", "fla-core, Gluon"
    level_0 = ", checkpoint level 0"
    assert (
        f"ours {taken['attnres, ms']}; fla-core {taken[fla + level_0 + ', ms']} with checkpoint level 0 and "
        f"{taken[fla + ', ms']} with 1, in Gluon {taken[gluon + level_0 + ', ms']} and {taken[gluon + ', ms']}; "
        f"torch.compile of the reference {taken['compiled reference, ms']}; "
    ) in text
    forms = [f"{form}{made}, ms" for form in ("compiled stacked", "stacked") for made in (", its stack given", "")]
    stacked = [f"{operator['details'][name]:.3g}" for name in forms]
    assert "the stacked form {} and {} compiled, {} and {} eager.".format(*stacked) in text
    assert (
        min(operator["details"], key=lambda name: operator["details"][name] if name in taken else 1e9) == "attnres, ms"
    )
    assert f"on an H200 it is {operator['ratio']:.2f} times as fast as the fastest other package" in README
    copied = backward["details"]["copy bandwidth, GB/s"] / 1e3
    assert f"A plain copy moves {copied:.2f} TB/s there" in text


def test_the_h100_s_rows_are_those_of_its_record():
    text = (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    decode, *shares = bench("-gpu-h100")
    for dim, forward, backward in zip((1024, 2048, 4096), shares[::2], shares[1::2], strict=True):
        assert f"d {dim}, 9 sources" in forward["what"] and f"d {dim}, 9 sources" in backward["what"]
        assert f"| {dim} | {Row(**forward).measured} | {Row(**backward).measured} |" in text
    taken = decode["details"]
    block, residual = taken["block, ms"], taken["residual, ms"]
    slower = Row(**decode).measured
    assert text.count(slower) == 3 and f"**A decode step takes {slower} longer with Block** (must 2%)" in text
    assert f"{block:.2f} ms for {residual:.2f}, so {1e3 * (block - residual) / 49:.0f} us at each of 49" in text
    copied, clocked = (shares[0]["details"][f"{of} bandwidth, GB/s"] / 1e3 for of in ("copy", "peak"))
    assert f"a plain copy at {copied:.2f} TB/s of {clocked:.2f}" in text


def compiled(call: str, direction: str, kernel: str) -> list[str]:
    """The numbers of a kernel of a call on sm_90: warps, registers, programs, spilled, .., issue cycles and kB."""
    of = f"{call}, {direction}: "
    (row,) = [row for row in bench("-kernels") if row["what"].startswith(of) and "sm_90" in row["where"]]
    (text,) = [text for name, text in row["details"].items() if name.endswith(f" {kernel}_kernel")]
    return re.findall(r"[\d.]+", text)


def test_the_kernels_counts_are_their_record():
    text = (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    kernels = ("forward", "forward"), ("backward", "backward"), ("backward", "key_gradients")
    for direction, kernel in kernels:
        of = [compiled(f"attention of 8 queries over 9 sources, d {d}", direction, kernel) for d in (1024, 4096, 7168)]
        programs = [numbers[2] for numbers in of]
        programs = programs[0] if len(set(programs)) == 1 else ", ".join(programs)
        cycles, kilobytes = (", ".join(numbers[place] for numbers in of) for place in (-2, -1))
        assert f"| {programs} | {cycles} | {kilobytes} |" in text
    single, merge = (
        compiled(f"{call}, d 1024", "backward", "backward")[-2]
        for call in ("attention of 1 queries over 9 sources", "sum and merge of 1 queries over 1 sources")
    )
    assert f"{int(single):,} issue cycles per token over nine sources" in text
    assert f"and {merge} in a sum and merge" in text
    assert all(
        " 0 bytes spilled" in told
        for row in bench("-kernels")
        for told in map(str, row["details"].values())
        if "spilled" in told
    )


def test_the_other_targets_are_their_record():
    ratios = {}
    for row in bench("-targets"):
        way, what = re.findall(r"operator (\w+), .* sources, (.*)", row["what"])[0]
        ratios[way, what] = row["ratio"]
    for name, *shown in [row for row in bench_tables("Other instruction sets") if row[0].startswith("x86")]:
        wanted = [f"{dtype}: {name.partition(',')[0]} over native" for dtype in ("float32", "bfloat16")]
        assert shown == [f"{ratios[way, what]:.2f}" for what in wanted for way in ("forward", "backward")]


def lab_step(record: str, name: str) -> list[str]:
    """Milliseconds, tokens per second and the share of the core's peak."""
    steps = bench(record)
    row = next(row for row in steps if row["what"].startswith(f"lab step, {name}, d "))
    ms = steps[0]["details"][f"{name}, ms"]
    return [f"{ms:.0f}", f"{row['details'][f'{name}, tokens per second']:.0f}", f"{row['ratio']:.0%}"]


def test_the_labs_step_and_the_microscope_are_their_records():
    shown = {row[0].strip("`"): row[1:] for row in bench_tables("The lab's step") if row[0].startswith("`")}
    assert list(shown) == ["residual", "block", "full"]
    for name, figures in shown.items():
        steps = lab_step("-lab", name), lab_step("-lab", f"{name}, compiled"), lab_step("-lab-avx2", name)
        assert figures == [cell for step in steps for cell in step]
        shorter = 1 - float(steps[1][0]) / float(steps[0][0])
        assert 0.25 < shorter < 0.34, "a quarter to a third"
    text = (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    peaks, muons = [], []
    for of in ("-lab", "-lab-avx2"):
        *steps, muon = bench(of)
        details = steps[0]["details"]
        peaks.append(f"{details['products, GFLOP/s']:.0f} GFLOP/s")
        muons.append([f"{details[name]:.0f}" for name in ("torch's Muon, ms", "Muon, ms")] + [f"{muon['ratio']:.1f}"])
    assert "(AVX-512 {}, AVX2, a Zen 3, {})".format(*peaks) in text
    wide, narrow = muons
    assert (
        "torch's Muon takes {} ms a step, more than all the rest of it, and ours {}: {} times less".format(*narrow)
        in text
    )
    assert "with AVX-512 it is {} and {}, {} times less".format(*wide) in text
    answers = [row[2] for row in bench_tables("The microscope") if row[2].endswith(" ms")]
    assert answers == [f"{row['details']['answer, ms']:.0f} ms" for row in bench("-look")]

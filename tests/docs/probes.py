"""What docs/EVIDENCE.md says of what the ladder's models can do."""

from __future__ import annotations

import statistics

from tests.docs.ladders import AHEAD, LADDER
from tests.docs.records import answers, number, probed, record


def ladder_probes() -> list[str]:
    """What the page says of what the ladder's largest models can do."""

    def points(task: str, arm: str) -> str:
        return probed(task, arm, "(probes-ladder)")

    def larger(arm: str, task: str = "copying") -> str:
        return probed(task, arm, "(probes-ladder-64)")

    small, large = (answers(name) for name in ("probes-ladder", "probes-ladder-64"))
    right = {arm: larger_right("induction", arm) for arm in ("residual", *LADDER)}
    copied = statistics.correlation(small["loss"], small["copying"])
    next_byte = [larger(arm, "next byte").split()[0] for arm in AHEAD]
    return [
        f"`rms-block` gets {points('names', 'rms-block')} more of the bytes",
        f"and {points('copying', 'rms-block')} more of a text that comes again; `interlayer` gets "
        f"{points('names', 'interlayer')} and {points('copying', 'interlayer')}.",
        f"({points('next byte', 'rms-block')} and {points('next byte', 'interlayer')})",
        *(
            f"of the names `residual` has {statistics.fmean(of['names'][:3]):.3f} right, {told} 21 models lie between "
            f"{min(of['names']):.3f} and {max(of['names']):.3f}"
            for of, told in ((small, "and the"), (large, "the"))
        ),
        f"`block` gets {larger('block')} more of a text that comes again, `full` {larger('full')}, `interlayer` "
        f"{larger('interlayer')} and `rms-block` {larger('rms-block')}, each",
        f"these four get {min(next_byte)} to {max(next_byte)} more right",
        f"(r = {copied:.2f}), and seeds of one rule spread as widely, with a standard deviation of "
        f"{small['within']:.3f}, as the rules' means do, with {small['between']:.3f}; at 16x64 it is "
        f"{large['within']:.3f} against {large['between']:.3f}.",
        f"`residual` has {right['residual']} of them right, `block` {right['block']} and `rms-residual` "
        f"{right['rms-residual']}, each fewer in every seed, `interlayer` {right['interlayer']} and `rms-block` "
        f"{right['rms-block']}, fewer in two of three, and `full` {right['full']} and Delta Block "
        f"{right['delta:block_size=4']}. Of the names Delta Block gets fewer right in every seed, "
        f"{larger_right('names', 'delta:block_size=4')}.",
    ]


def largest_probes() -> list[str]:
    """What the page says of what the models of 16x80 and 16x96 can do."""

    def more(arm: str, size: str, task: str = "copying") -> str:
        return probed(task, arm, f"(probes-ladder-{size})")

    def right(arm: str, size: str, task: str = "names") -> str:
        return larger_right(task, arm, f"probes-ladder-{size}")

    next_byte = {size: sorted(more(arm, size, "next byte").split()[0] for arm in AHEAD) for size in ("80", "96")}
    letters = {(arm, size): right(arm, size, "induction") for arm in ("residual", *LADDER) for size in ("80", "96")}
    return [
        f"`full` gets {more('full', '80')} more and `rms-block` {more('rms-block', '80')}, in every seed, `block` "
        f"{more('block', '80')} and `interlayer` {more('interlayer', '80')}. Of the next byte the four still get "
        f"{next_byte['80'][0]} to {next_byte['80'][-1]} more right, in every seed",
        f"the most right of all arms, {right('residual', '80')}; `block` has {right('block', '80')}, Delta Block "
        f"{right('delta:block_size=4', '80')} and `interlayer` {right('interlayer', '80')}, each fewer in every seed.",
        f"`full` gets {more('full', '96')} more and `block` {more('block', '96')}, in every seed, `rms-block` "
        f"{more('rms-block', '96')} and `interlayer` {more('interlayer', '96')}. Of the next byte the four get "
        f"{next_byte['96'][0]} to {next_byte['96'][-1]} more right, in every seed.",
        f"the most right again, {right('residual', '96')}; `rms-block` has {right('rms-block', '96')} and Delta Block "
        f"{right('delta:block_size=4', '96')}, fewer in every seed.",
        f"At 16x80 `residual` has {letters['residual', '80']} of the random letters right, `full` "
        f"{letters['full', '80']} and `rms-block` {letters['rms-block', '80']}, mostly by one seed each, and `block` "
        f"{letters['block', '80']} and `interlayer` {letters['interlayer', '80']}, fewer in every seed; at 16x96 "
        f"`residual` has {letters['residual', '96']}, `block` {letters['block', '96']}, more in every seed, `full` "
        f"{letters['full', '96']}, by two, and `rms-residual` {letters['rms-residual', '96']}, Delta Block "
        f"{letters['delta:block_size=4', '96']} and `rms-block` {letters['rms-block', '96']}, fewer in every seed, "
        "decided for the last.",
        f"the fewest brackets right of all seven, {right('residual', '96', 'brackets')}, and `interlayer` the most, "
        f"{right('interlayer', '96', 'brackets')}.",
    ]


def more_right(name: str) -> dict[tuple[str, str], list[float]]:
    """By arm and task, how much more of a task the arm gets right than the baseline, seed by seed."""
    of = record(name)
    right = {(run["arm"], run["seed"]): run["right"] for run in of["runs"]}
    return {
        (arm, task["name"]): [right[arm, seed][i] - right["residual", seed][i] for seed in range(3)]
        for arm in LADDER
        for i, task in enumerate(of["tasks"])
    }


def larger_right(task: str, arm: str, name: str = "probes-ladder-64") -> str:
    """What share of a task the models of a size, 16x64 where no other is named, get right under an arm."""
    of = record(name)
    (place,) = [i for i, one in enumerate(of["tasks"]) if one["name"] == task]
    return number(statistics.fmean(run["right"][place] for run in of["runs"] if run["arm"] == arm), 3)

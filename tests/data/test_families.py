"""Near-duplicates go to the same part."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres.data.families import COMMON, families, line_marks
from attnres.data.split import Survey, held_out

HEADER = "# a licence that every file of the package begins with\n"


def text(number: int, lines: int = 30) -> str:
    return HEADER + "".join(f"    value_{number}_{line} = compute({number}, {line})\n" for line in range(lines))


def family_of(*texts: str) -> list[int]:
    return families([line_marks(text.encode()) for text in texts]).tolist()


def test_copies_with_changes_are_one_family_and_others_are_not():
    changed = text(0).replace("compute(0, 3)", "compute(0, 4)").replace("    value", "  value")
    shorter = text(0, lines=12) + "something_else_at_the_end_of_it = 1\n"
    first, *others = family_of(text(0), text(1), changed, text(2), shorter)
    assert others == [others[0], first, others[2], first] and len({first, others[0], others[2]}) == 3


def test_a_chain_of_near_duplicates_is_one_family():
    lines = [f"chained_line_{number} = some_function()\n" for number in range(40)]
    links = ["".join(lines[start : start + 16]) for start in (0, 8, 16, 24)]
    assert len(set(family_of(*links))) == 1 and len(set(family_of(links[0], links[3]))) == 2


def test_headers_and_short_documents_tell_nothing():
    shared = "".join(f"import a_module_that_all_of_them_need_{number}\n" for number in range(9))
    many = [shared + text(number, lines=3) for number in range(COMMON + 1)]
    assert len(set(family_of(*many))) == len(many)
    assert len(set(family_of(text(0, lines=3), text(0, lines=3) + "x = 1\n"))) == 2


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_a_family_is_never_split_and_single_documents_are_as_without(seed):
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 25, 40)
    texts = [text(int(kind)) + f"# number {number}\n" for number, kind in enumerate(kinds)]
    survey = Survey(families=True)
    for one in texts:
        survey.add(one)
    held = held_out(survey.hashes(), survey.sizes, 0.2)
    assert held is not None
    sides = {kind: {bool(side) for side in held[kinds == kind]} for kind in set(kinds.tolist())}
    assert all(len(side) == 1 for side in sides.values()) and {True} in sides.values() and {False} in sides.values()

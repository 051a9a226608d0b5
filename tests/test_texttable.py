import pytest

from attnres.texttable import duration, number


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.2, "0 s"),
        (90, "1.5 minutes"),
        (40_000, "11 hours"),
    ],
)
def test_durations_have_no_one_minutes(seconds, written):
    assert duration(seconds) == written


@pytest.mark.parametrize(
    ("value", "form", "written"),
    [
        (-0.00004, "+.4f", "+0.0000"),
        (-0.00004, ".4f", "0.0000"),
        (-0.00006, "+.4f", "-0.0001"),
        (None, ".2f", ""),
        (float("nan"), ".2f", "not finite"),
    ],
)
def test_a_rounded_zero_has_no_minus(value, form, written):
    assert number(value, form) == written

"""NAME:OPTION=VALUE,OPTION=VALUE: one parser, one printer, one name for one connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnres import UsageError, connection_names, make_connection
from attnres.connections import canonical_connection, connection_class, option_defaults
from attnres.connections._grammar import parse_connection, print_connection

words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
names = st.from_regex(r"[a-z][a-z0-9-]*|([\w/: ]+/)?\w+\.py:[A-Z]\w*", fullmatch=True).map(str.strip)
values = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    words.filter(lambda text: text not in ("true", "false", "null", "True", "False", "None", "NaN", "Infinity")),
)


@given(names, st.dictionaries(words, values))
def test_what_is_printed_is_read_back(name, options):
    read = parse_connection(print_connection(name, options))
    assert read == (name, options)
    assert {option: type(value) for option, value in read[1].items()} == {k: type(v) for k, v in options.items()}


@pytest.mark.parametrize("value", ["", "a,b", " a", "8", "true", "None", "1e3"])
def test_text_that_would_be_read_otherwise_is_refused(value):
    with pytest.raises(UsageError, match="cannot be written"):
        print_connection("block", {"option": value})


def options_of(name: str) -> st.SearchStrategy[dict]:
    """Values of the kind of each option's default: what the printer must cope with, valid or not."""
    kinds = {bool: st.booleans(), int: st.integers(), float: st.floats(1e-30, 1e30), str: words, type(None): values}
    defaults = option_defaults(connection_class(name))
    return st.fixed_dictionaries({}, optional={o: kinds[type(default)] for o, default in defaults.items()})


@pytest.mark.parametrize("name", connection_names())
@given(data=st.data())
def test_every_connection_has_one_name(name, data):
    options = data.draw(options_of(name))
    canonical = canonical_connection(name, **options)
    assert canonical_connection(canonical) == canonical
    shuffled = dict(data.draw(st.permutations(list(options.items()))))
    assert canonical_connection(name, **shuffled) == canonical
    read, told = parse_connection(canonical)
    defaults = option_defaults(connection_class(name))
    assert read == name
    assert {**defaults, **told} == {**defaults, **options}
    assert not any(told[option] == defaults[option] and type(told[option]) is type(defaults[option]) for option in told)


def test_what_one_name_looks_like():
    assert canonical_connection(" block : heads = 2, block_size=4,eps=1 , key_norm=False") == (
        "block:eps=1.0,key_norm=false,heads=2"
    )
    assert canonical_connection("block:block_size=4") == canonical_connection("block", block_size=4) == "block"
    assert canonical_connection("block:window=null,query=static") == "block"
    assert canonical_connection("block:block_size=true") == "block:block_size=true", "refused later, not lost"


def test_options_in_the_name_and_beside_it():
    made = make_connection("block:block_size=8", 12, 4, heads=2)
    assert (made.block_size, len(list(made.parameters()))) == (8, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("block:", "'' is no option; write NAME or NAME:OPTION=VALUE"),
        ("block:heads", "'heads' is no option; write NAME or NAME:OPTION=VALUE"),
        ("block:heads=", "'heads=' is no option"),
        ("block:=3", "'=3' is no option"),
        ("block:heads=3,,eps=1", "'' is no option"),
        ("block:heads=3,heads=2", "heads is given twice; give it once"),
        ("mhc_lite", "unknown connection 'mhc_lite'; did you mean mhc-lite?"),
        ("Block", "did you mean block?"),
        ("blok", "did you mean block?"),
        ("", "unknown connection ''; choose one of: block,"),
        ("full:block_size=4", "has no option 'block_size'; it takes eps"),
        ("block:blocksize=4", "no option 'blocksize'; did you mean block_size?"),
        ("residual:heads=2", "it takes no options"),
        ("block:eps=NaN", "connection block:eps=NaN: eps must be a positive number"),
        ("block:key_norm=1", "connection block:key_norm=1: key_norm must be True or False"),
        ("block:block_size=4.0", "connection block:block_size=4.0: block_size must be a whole number"),
        ("full:heads=5", "connection full:heads=5: heads must divide dim: 5 does not divide 12"),
        (None, "named by text, not None"),
    ],
)
def test_what_cannot_be_read_is_one_line(text, message):
    with pytest.raises(UsageError) as refused:
        make_connection(text, 12, 4)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_an_option_may_name_a_file():
    assert parse_connection("r.py:R:note=b.py:d") == ("r.py:R", {"note": "b.py:d"})


def test_an_option_beside_the_name_is_not_given_twice():
    with pytest.raises(UsageError, match="heads is given twice"):
        make_connection("block:heads=2", 12, 4, heads=2)

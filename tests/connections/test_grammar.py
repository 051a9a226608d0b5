"""NAME:OPTION=VALUE,OPTION=VALUE: one parser, one printer, one name for one connection."""

from __future__ import annotations

import pytest

from attnres import make_connection
from attnres.connections import canonical_connection, connection_class, option_defaults, saved_connection
from attnres.connections.grammar import parse_connection
from tests.depth import VARIANTS, variant_id


@pytest.mark.parametrize("variant", VARIANTS, ids=variant_id)
def test_a_connection_has_one_name(variant):
    name, options = variant
    canonical = canonical_connection(name, **options)
    assert canonical_connection(canonical) == canonical == canonical_connection(name, **dict([*options.items()][::-1]))
    read, told = parse_connection(canonical)
    defaults = option_defaults(connection_class(name))
    assert read == name and defaults | told == defaults | options
    assert not any(told[option] == defaults[option] for option in told)


def test_what_one_name_looks_like():
    assert canonical_connection(" block : heads = 2, block_size=4,eps=1 , key_norm=False") == (
        "block:block_size=4,eps=1.0,key_norm=false,heads=2"
    )
    assert canonical_connection("full:heads=1") == canonical_connection("full", heads=1) == "full"
    assert canonical_connection("block:window=null,query=static") == "block"
    assert canonical_connection("block:block_size=true") == "block:block_size=true", "refused later, not lost"
    assert parse_connection("r.py:R:note=b.py:d") == ("r.py:R", {"note": "b.py:d"})
    made = make_connection("block:block_size=8", 12, 4, heads=2)
    assert (made.block_size, len(list(made.parameters()))) == (8, 10)


@pytest.mark.parametrize("name", ["block", "rms-block"])
def test_about_eight_blocks_at_any_depth_and_written_out_where_it_is_saved(name):
    for sublayers, size in ((16, 2), (32, 4), (47, 6), (48, 6)):
        made = make_connection(name, 8, sublayers)
        assert made.block_size == size and f"block_size={size}" in made.signature and "blocks" not in made.signature
        assert make_connection(name, 8, sublayers, blocks=8).signature == made.signature == made.anew().signature
        saved = saved_connection(name, sublayers)
        assert saved == f"{name}:block_size={size}" and canonical_connection(saved, sublayers) == name
        assert canonical_connection(saved, 4 * sublayers) == saved
    assert saved_connection(f"{name}:blocks=3,eps=1", 12) == f"{name}:block_size=4,eps=1.0"
    with pytest.raises(ValueError, match="not both"):
        make_connection(name, 8, 16, blocks=3, block_size=2)

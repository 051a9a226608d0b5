"""The operators that keep nothing for a gradient, which decoding calls, against the general one."""

from __future__ import annotations

import pytest
import torch

from attnres.ops import add_and_attend, attend, attend_outs, library
from tests.ops.cases import make_sources, make_vector

CHECKS = ("test_schema", "test_faketensor")


@pytest.mark.parametrize("gained", [True, False])
def test_one_query_without_gradients(gained):
    """To the bit what the general one gives; and they do what any operator does."""
    sources, query, gain = make_sources(3, 3, 15, 40), make_vector(40), make_vector(40, centre=1.0)
    gains = [gain] if gained else []
    whole = attend(sources, [query], gains, (), 1e-6, torch.float32, scale=2.0)[0][0]
    arguments = (sources, query, gain if gained else None, 1e-6, 2.0, torch.float32)
    torch.library.opcheck(library.attend_one, arguments, test_utils=CHECKS)
    adding = (sources[:-1], sources[-1], *arguments[1:])
    torch.library.opcheck(library.add_and_attend_one, adding, test_utils=CHECKS)
    (kept,), total = add_and_attend(*adding[:2], [query], gains, (), 1e-6, torch.float32, scale=2.0)
    with torch.no_grad():
        for one, other in zip(library.add_and_attend_one(*adding), (kept, total), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        torch.testing.assert_close(library.attend_one(*arguments), whole, rtol=0, atol=0)
        h = torch.func.vmap(lambda v: attend_outs([v], [query], gains, (), 1e-6, torch.float32)[0])(sources[0])
        torch.testing.assert_close(h, attend([sources[0]], [query], gains, (), 1e-6, torch.float32)[0][0])

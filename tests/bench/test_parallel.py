"""`attnres bench parallel` counts on the wire what the cost model counts on paper."""

import pytest

from attnres.bench import parallel
from attnres.bench.measure import Setting


@pytest.mark.timeout(120)
def test_bytes_are_those_of_the_cost_model():
    heard = []
    rows = parallel.measure(Setting(rounds=1, quick=True, progress=heard.append))
    total, peak, *_, paper = rows
    assert [value for name, value in total.details.items() if "as counted" in name] == ["yes", "yes"]
    assert total.ratio == pytest.approx(21 / 35) and peak.ratio == pytest.approx(4 / 8)
    assert total.details["cached, backward over forward bytes"] == 1
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)
    assert paper.ratio == pytest.approx(paper.details["P = 8, block, cached, over ideal"])
    assert any("pipeline step" in text for text in heard)

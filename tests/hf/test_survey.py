"""docs/reference/models.md says what attach does."""

import pytest
import transformers

from tests.hf.survey import PAGE, attempt


def test_a_row_of_the_page_is_what_comes_of_trying():
    page = PAGE.read_text(encoding="utf-8")
    if f"Transformers {transformers.__version__} " not in page:
        pytest.skip(f"the page is of another transformers than {transformers.__version__}")
    assert f"\n{attempt('gpt2')}\n" in page

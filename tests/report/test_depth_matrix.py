"""`plot_depth_matrix`, from a matrix, a model, tokens."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from attnres import Transformer, TransformerConfig, UsageError, mixing_matrix, plot_depth_matrix
from attnres.report.style import depth_colours

MODEL = TransformerConfig(dim=16, layers=2, connection="full")
TOKENS = torch.randint(256, (2, 3))


def picture(figure) -> np.ndarray:
    """What the figure shows as a matrix."""
    shown = figure.axes[0].images[0].get_array()
    return np.asarray(shown.filled(0))


def test_a_model_s_matrix_is_averaged_over_its_tokens():
    model = Transformer(MODEL)
    matrix = mixing_matrix(model, TOKENS)
    figure = plot_depth_matrix(model, TOKENS, title="full")
    np.testing.assert_allclose(picture(figure), depth_colours(np.tril(np.ones((5, 5)))), rtol=1e-6)  # at its start
    np.testing.assert_array_equal(picture(figure), picture(plot_depth_matrix(matrix)))
    np.testing.assert_array_equal(picture(figure), picture(plot_depth_matrix(matrix.numpy())))
    assert figure.axes[0].get_title(loc="left") == "full"
    file = io.BytesIO()
    figure.savefig(file)
    assert file.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(3)[:2],), r"not \[2, 3\]"),
        ((np.eye(3), TOKENS), "or a matrix alone"),
        ((Transformer(MODEL),), "a model with tokens"),
        ((np.eye(3), None, "", ["one"]), "1 names are not one for each of 2 sublayers"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(arguments, message):
    with pytest.raises(UsageError, match=message):
        plot_depth_matrix(*arguments)


def test_what_is_not_finite_is_marked():
    """It is drawn as the paper, and so is what lies above the diagonal, where there is nothing."""
    matrix = np.tril(np.ones((3, 3)))
    assert "finite" not in plot_depth_matrix(matrix).axes[0].get_xlabel()
    matrix[2, 1] = np.nan
    axes = plot_depth_matrix(matrix).axes[0]
    assert axes.get_xlabel() == "source (layer); x: not a finite number"
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[1.0, 2.0]]]

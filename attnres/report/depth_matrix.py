"""The picture of what depth carries, for a notebook or a paper."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from attnres.analysis.profile import sublayer_names
from attnres.connections import mixing_matrix
from attnres.errors import UsageError
from attnres.report.charts import Matrix, Plot
from attnres.report.draw import STYLE, figure_of
from attnres.report.write import NOTE


def plot_depth_matrix(
    matrix: Tensor | np.ndarray | nn.Module,
    tokens: Tensor | None = None,
    title: str = "",
    names: Sequence[str] | None = None,
) -> Figure:
    """Draw a depth mixing matrix with its colour scale, averaged over all leading axes.

    >>> plot_depth_matrix(model, tokens).savefig("depth.png")
    >>> plot_depth_matrix(mixing_matrix(connection, embedding, sublayers), title="block")

    Args:
        matrix: [..., site, source], or a model that `mixing_matrix` takes with the tokens.
        tokens: int64 [batch, time], for a model.
        title: Title of the figure.
        names: Names of the L sublayers; "layer 0 attention", "layer 0 MLP", .. when not given.

    Raises:
        UsageError: the shape is not that of a depth matrix, or tokens are missing, or given together with a matrix.
    """
    if isinstance(matrix, nn.Module) and tokens is not None:
        matrix = mixing_matrix(matrix, tokens)
    elif isinstance(matrix, nn.Module) or tokens is not None:
        raise UsageError("give a model with tokens, or a matrix alone")
    array = torch.as_tensor(matrix).detach().double().cpu().numpy()
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise UsageError(f"a depth matrix is [..., site, source], as many of each, not {list(array.shape)}")
    if names is not None and len(names) != array.shape[-1] - 1:
        raise UsageError(f"{len(names)} names are not one for each of {array.shape[-1] - 1} sublayers")
    names = sublayer_names(array.shape[-1] - 1) if names is None else names
    chart = Matrix(title=title, names=names, values=array.reshape(-1, *array.shape[-2:]).mean(0))
    with mpl.rc_context(STYLE):
        return figure_of(Plot(name="depth", alt="a depth matrix", charts=[chart], note=NOTE))

"""Exported Kimi K3 in MLX-LM, another engine that nobody here wrote."""

from __future__ import annotations

import pytest
import torch

from attnres.cli import main
from attnres.kimi_k3.export import write_published
from tests.kimi_k3.small import decided_tokens, small_k3

mx = pytest.importorskip("mlx.core", reason="pip install 'mlx-lm[cpu]'; its Linux wheels are for glibc 2.35 and later")
pytest.importorskip("mlx_lm.models.kimi_k3", reason="mlx-lm 0.32 has Kimi K3")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


@torch.no_grad()
def test_mlx_computes_the_same(tmp_path):
    """From `attnres export --checkpoint`: every logit of a prompt, and 64 greedy tokens with its cache."""
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model = small_k3()
    tokens = decided_tokens(model, 40, drawn=64)
    write_published(model, tmp_path / "first", None, None)
    assert main(["export", str(tmp_path / "first"), "--checkpoint", str(tmp_path / "published")]) == 0
    theirs, _ = load_model(tmp_path / "published")
    found = torch.tensor(theirs(mx.array(tokens[None].tolist())).tolist())
    ours = model(tokens[None]).logits
    assert ours.std() > 0.3 and (found - ours).abs().max() < 1e-3
    drawn = model.generate(tokens[None], max_new_tokens=64, do_sample=False)[0, 40:]
    steps = generate_step(mx.array(tokens.tolist()), theirs, max_tokens=64)
    assert [int(token) for token, _ in steps] == drawn.tolist()

"""A vision transformer of one's own with any connection between its sublayers.

    python examples/vit.py
    python examples/vit.py mhc
    python examples/vit.py residual

It learns to tell in which of eight directions noisy stripes run, from images that it makes up, in a few seconds, and
prints the accuracy on new ones and how much of the patches' own embedding each site still reads. Needs torch and numpy
alone.
"""

from __future__ import annotations

import math
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres import UsageError, make_connection, mixing_matrix, param_groups

SIDE, PATCH, CLASSES = 16, 4, 8


class Attention(nn.Module):
    """Attention among patches. A sublayer normalises its own input and leaves adding to the connection."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        normed = self.norm(h)
        return self.attention(normed, normed, normed, need_weights=False)[0]


def mlp(dim: int) -> nn.Module:
    return nn.Sequential(nn.RMSNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))


class ViT(nn.Module):
    def __init__(self, connection: str, dim: int = 48, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, dim, PATCH, stride=PATCH)
        self.positions = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, dim))
        self.sublayers = nn.ModuleList(f for _ in range(layers) for f in (Attention(dim, heads), mlp(dim)))
        self.connection = make_connection(connection, dim, sublayers=len(self.sublayers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, CLASSES)

    def unrolled(self, images: Tensor):
        """What `mixing_matrix(model, images)` asks a model for: its connection, the embedding, the sublayers."""
        return self.connection, self.patches(images).flatten(2).mT + self.positions, list(self.sublayers)

    def forward(self, images: Tensor) -> Tensor:
        connection, x, sublayers = self.unrolled(images)
        # In place of: for f in sublayers: x = x + f(x)
        return self.head(self.norm(connection(x, sublayers)).mean(1))


def stripes(count: int) -> tuple[Tensor, Tensor]:
    """Images [count, 1, SIDE, SIDE] of stripes under noise, and the class of their direction [count]."""
    classes = torch.randint(CLASSES, (count,))
    angle = (math.pi / CLASSES * classes)[:, None, None]
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    phase = 2 * math.pi * torch.rand(count, 1, 1)
    waves = torch.sin(phase + 1.2 * (row * angle.sin() + column * angle.cos()))
    return (waves + 0.8 * torch.randn_like(waves))[:, None], classes


def main(connection: str, steps: int = 100) -> float:
    """Train, and return the accuracy on new images."""
    torch.manual_seed(0)
    model = ViT(connection)
    optimizer = torch.optim.AdamW(param_groups(model, lr=1e-3, query_lr=1e-2, weight_decay=0.1))
    for step in range(1, steps + 1):
        images, classes = stripes(64)
        loss = F.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: cross-entropy {loss.item():.2f}")
    images, classes = stripes(512)
    with torch.no_grad():
        accuracy = (model(images).argmax(-1) == classes).float().mean().item()
    print(f"\n{accuracy:.0%} of new images are told right; by chance it would be {1 / CLASSES:.0%}\n")
    print("share of the patches' embedding in what each site reads, and in the readout, in percent")
    matrix = mixing_matrix(model, images).abs()
    share = (matrix / matrix.sum(-1, keepdim=True))[..., 0].mean((0, 1))
    print("".join(f"{100 * weight:5.0f}" for weight in share))
    return accuracy


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "full")
    except UsageError as error:
        sys.exit(f"{error}\n\n{__doc__}")

"""A GPT of one's own with any connection between its sublayers.

    python examples/gpt.py
    python examples/gpt.py hc
    python examples/gpt.py residual

It reads the Python source of this folder's own files byte by byte, trains for a few seconds and prints the loss, a
sample, and what each site learned to read. Needs torch and numpy alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres import UsageError, make_connection, mixing_matrix, param_groups

CONTEXT, BATCH = 64, 16


class Attention(nn.Module):
    """Causal attention. A sublayer normalises its own input and leaves adding to the connection."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(dim)
        self.inwards = nn.Linear(dim, 3 * dim, bias=False)
        self.outwards = nn.Linear(dim, dim, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.inwards(self.norm(h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.outwards(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def mlp(dim: int) -> nn.Module:
    return nn.Sequential(nn.RMSNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))


class GPT(nn.Module):
    def __init__(self, connection: str, dim: int = 64, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, dim), nn.Embedding(CONTEXT, dim)
        self.sublayers = nn.ModuleList(f for _ in range(layers) for f in (Attention(dim, heads), mlp(dim)))
        self.connection = make_connection(connection, dim, sublayers=len(self.sublayers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, 256, bias=False)

    def unrolled(self, tokens: Tensor):
        """What `mixing_matrix(model, tokens)` asks a model for: its connection, the embedding, the sublayers."""
        return self.connection, self.tokens(tokens) + self.positions.weight[: tokens.shape[1]], list(self.sublayers)

    def forward(self, tokens: Tensor) -> Tensor:
        connection, x, sublayers = self.unrolled(tokens)
        return self.head(self.norm(connection(x, sublayers)))  # in place of: for f in sublayers: x = x + f(x)


def batch(text: Tensor) -> Tensor:
    """[batch, CONTEXT + 1], from random places"""
    starts = torch.randint(len(text) - CONTEXT, (BATCH, 1))
    return text[starts + torch.arange(CONTEXT + 1)]


def loss_of(model: GPT, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def sample(model: GPT, prompt: str, count: int) -> str:
    tokens = torch.tensor([list(prompt.encode())])
    for _ in range(count):
        probabilities = model(tokens[:, -CONTEXT:])[:, -1].div(0.7).softmax(-1)
        tokens = torch.cat([tokens, probabilities.multinomial(1)], 1)
    return bytes(tokens[0].tolist()).decode(errors="replace")


def main(connection: str, steps: int = 200) -> tuple[float, float]:
    """Train, and return the loss before and after in nats per byte."""
    torch.manual_seed(0)
    source = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    text = torch.frombuffer(bytearray(source), dtype=torch.uint8).long()
    model = GPT(connection)
    optimizer = torch.optim.AdamW(param_groups(model, lr=2e-3, query_lr=2e-2, weight_decay=0.1))
    before = loss_of(model, batch(text)).item()
    for step in range(1, steps + 1):
        loss = loss_of(model, batch(text))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.2f} nats per byte")
    print(f"\na sample: {sample(model, 'def ', 80)!r}\n")
    print("weight of each source (column: embedding, then every sublayer's output) at each site (row), in percent")
    for row in mixing_matrix(model, batch(text)[:, :-1]).mean((0, 1)):
        print("".join(f"{100 * weight:5.0f}" for weight in row))
    return before, loss.item()


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "full")
    except UsageError as error:
        sys.exit(f"{error}\n\n{__doc__}")

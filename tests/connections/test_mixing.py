"""mixing_matrix of whole models; that it is right is tested in test_every_connection.py."""

from __future__ import annotations

import torch
from torch import nn

from attnres import Transformer, TransformerConfig, make_connection, mixing_matrix
from tests.depth import make_sublayers, randomise


class Own(nn.Module):
    """A model of one's own, which says how its tokens pass through depth."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.sublayers = make_sublayers(6, 3)
        self.connection = make_connection("full", dim=6, sublayers=3)
        randomise(self.connection)

    def unrolled(self, tokens):
        return self.connection, self.embedding(tokens), self.sublayers


def test_a_model_and_tokens_stand_for_its_connection_embedding_and_sublayers():
    own, tokens = Own(), torch.randint(5, (2, 3))
    expected = mixing_matrix(own.connection, own.embedding(tokens), own.sublayers)
    torch.testing.assert_close(mixing_matrix(own, tokens), expected)
    torch.testing.assert_close(mixing_matrix(nn.Sequential(own), tokens), expected)  # wrapped, as DDP and PEFT do

    model = Transformer(TransformerConfig(dim=16, layers=2, connection="full"))
    randomise(model.connection)
    connection, x, sublayers = model.unrolled(tokens)
    assert connection is model.connection
    torch.testing.assert_close(mixing_matrix(model, tokens), mixing_matrix(connection, x, sublayers))
    values = connection.run(connection.start(x), sublayers)
    torch.testing.assert_close(model.logits(connection.readout(values)), model(tokens))

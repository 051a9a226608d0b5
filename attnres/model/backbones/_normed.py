"""Sublayers that begin with a norm, which a read of depth may compute with what it reads."""

from __future__ import annotations

from functools import partial

from torch import nn

from attnres.connections import Normed, Sublayer
from attnres.model.backbones._backbone import Context
from attnres.ops import plain_norm
from attnres.torch_private import calls_forward_alone


class PreNormed(nn.Module):
    """A sublayer that begins with its `norm`, and can be called with what that returned: `normed=True`."""

    norm: nn.Module


def bound(sublayer: nn.Module, context: Context) -> Sublayer:
    """The sublayer as a function of what it reads alone. Where it has a hook, that sees what it reads."""
    whole = partial(sublayer, context=context)
    if isinstance(sublayer, PreNormed) and (norm := plain_norm(sublayer.norm)) and calls_forward_alone(sublayer):
        return Normed(whole, norm, partial(whole, normed=True))
    return whole

"""A rule that is right, and rules that break it in one place each: one for each check of `attnres check`."""

from __future__ import annotations

import torch
from torch import nn

from attnres import Connection


class Decay(Connection):
    """The one that is right."""

    def __init__(self, dim, sublayers):
        super().__init__(dim, sublayers)
        self.decay = nn.ParameterList(torch.ones(1) for _ in range(sublayers))

    def weigh(self, values, site):
        return self.decay[site] if site < self.sublayers else ()

    def gather(self, values, weights, site):
        return values[0]

    def scatter(self, values, weights, site, h, y):
        return ((weights * values[0] + y).to(values[0].dtype),)


class NoTuple(Decay):
    def scatter(self, values, weights, site, h, y):
        return weights * values[0] + y


class Clamped(Decay):
    """Linear but where a stream has grown."""

    def gather(self, values, weights, site):
        return values[0].clamp(-20, 20)


class CountsPlaces(Decay):
    def weigh(self, values, site):
        places = torch.arange(values[0].shape[-2] if values[0].dim() > 1 else 1)
        return (self.decay[site] / (1 + places))[:, None] if site < self.sublayers else ()


class InPlace(Decay):
    def scatter(self, values, weights, site, h, y):
        values[0].detach().add_(y.detach())
        return (values[0] + 0,)


class Shared(Decay):
    def weigh(self, values, site):
        return self.decay[0]


class Rounds(Decay):
    """A number without axes does not widen what it is multiplied by."""

    def weigh(self, values, site):
        return self.decay[site][0] if site < self.sublayers else ()


class Keeps(Decay):
    """What its own site's `scatter` needs, on the module: right as long as nothing comes between."""

    def weigh(self, values, site):
        self.share = values[0].mean(-1, keepdim=True).sigmoid()
        return ()

    def scatter(self, values, weights, site, h, y):
        return (values[0] + self.share * y,)


class Remembers(Decay):
    def __init__(self, dim, sublayers):
        super().__init__(dim, sublayers)
        self.seen = {}

    def weigh(self, values, site):
        return self.seen.setdefault(site, self.decay[site].detach().clone()) if site < self.sublayers else ()


class Forgets(Decay):
    def scatter(self, values, weights, site, h, y):
        return ((weights * values[0] + (y if site != 2 else 0 * y)).to(values[0].dtype),)


class Wrong(Decay):
    def mix(self, values, site):
        return super().mix(values, site)[0], 2 * values[0]

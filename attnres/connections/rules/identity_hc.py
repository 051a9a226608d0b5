"""mHC without the m: streams are read and written, and never mixed with each other."""

from __future__ import annotations

from torch import Tensor

from attnres.connections.manifold import ManifoldStreams


class IdentityHC(ManifoldStreams):
    """mHC with H_res = I: M[l, i+1] = H_pre_l H_post_i.

    Source: "Your DeepSeek mHC might not need the m", as told in Su 2026, "Attention Residuals: a memoir".
    """

    def residual_mixing(self, u: Tensor, site: int) -> None:
        return None

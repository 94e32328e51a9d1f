"""A call of every operation that autocast has to do with, under the name that Python has for it."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from torch import linalg
from torch.nn import functional

deprecated = pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated:UserWarning")


class Tensors:
    """Makes arguments on a device, their types in turn."""

    def __init__(self, device, *dtypes, trained=False):
        self.device = device
        self._dtypes = cycle(dtypes)
        self._trained = trained

    def __call__(self, *shape):
        return self.given(*shape).requires_grad_(self._trained)

    def given(self, *shape):
        """Never trained."""
        return torch.full(shape, 0.5, dtype=next(self._dtypes), device=self.device)

    def indices(self, *shape):
        return torch.zeros(shape, dtype=torch.int64, device=self.device)


OPERATIONS = {
    "__matmul__": lambda t: t(4, 4) @ t(4, 4),
    "__pow__": lambda t: t(4) ** 2,
    "__rmatmul__": lambda t: t(4, 4).__rmatmul__(t(4, 4)),
    "__rpow__": lambda t: 2 ** t(4),
    "acos": lambda t: torch.acos(t(4)),
    "addbmm": lambda t: torch.addbmm(t(4, 4), t(2, 4, 4), t(2, 4, 4)),
    "addcdiv": lambda t: torch.addcdiv(t(4), t(4), t(4)),
    "addcmul": lambda t: torch.addcmul(t(4), t(4), t(4)),
    "addmm": lambda t: torch.addmm(t(4, 4), t(4, 4), t(4, 4)),
    "addmv": lambda t: torch.addmv(t(4), t(4, 4), t(4)),
    "addr": lambda t: torch.addr(t(4, 4), t(4), t(4)),
    "asin": lambda t: torch.asin(t(4)),
    "atan2": lambda t: torch.atan2(t(4), t(4)),
    "baddbmm": lambda t: torch.baddbmm(t(2, 4, 4), t(2, 4, 4), t(2, 4, 4)),
    "bilinear": lambda t: functional.bilinear(t(2, 4), t(2, 4), t(3, 4, 4)),
    "binary_cross_entropy_with_logits": lambda t: functional.binary_cross_entropy_with_logits(
        t(4), t(4)
    ),
    "bmm": lambda t: torch.bmm(t(2, 4, 4), t(2, 4, 4)),
    "cat": lambda t: torch.cat([t(4), t(4)]),
    "cdist": lambda t: torch.cdist(t(4, 4), t(4, 4)),
    "chain_matmul": lambda t: torch.chain_matmul(t(4, 4), t(4, 4), t(4, 4)),
    "conv1d": lambda t: functional.conv1d(t(1, 4, 8), t(4, 4, 3), t(4)),
    "conv2d": lambda t: functional.conv2d(t(1, 4, 8, 8), t(4, 4, 3, 3)),
    "conv3d": lambda t: functional.conv3d(t(1, 4, 8, 8, 8), t(4, 4, 3, 3, 3)),
    "conv_tbc": lambda t: torch.conv_tbc(t(8, 1, 4), t(3, 4, 4), t(4)),
    "conv_transpose1d": lambda t: functional.conv_transpose1d(t(1, 4, 8), t(4, 4, 3)),
    "conv_transpose2d": lambda t: functional.conv_transpose2d(t(1, 4, 8, 8), t(4, 4, 3, 3)),
    "conv_transpose3d": lambda t: functional.conv_transpose3d(t(1, 4, 8, 8, 8), t(4, 4, 3, 3, 3)),
    "cosh": lambda t: torch.cosh(t(4)),
    "cosine_embedding_loss": lambda t: functional.cosine_embedding_loss(t(2, 4), t(2, 4), t(2)),
    "cosine_similarity": lambda t: functional.cosine_similarity(t(2, 4), t(2, 4)),
    "cross": lambda t: torch.cross(t(2, 3), t(2, 3), dim=1),
    "cross_entropy": lambda t: functional.cross_entropy(t(2, 4), t.indices(2)),
    "cumprod": lambda t: t(4).cumprod(0),
    "cumsum": lambda t: t(4).cumsum(0),
    "dist": lambda t: torch.dist(t(4), t(4)),
    "dot": lambda t: torch.dot(t(4), t(4)),
    "einsum": lambda t: torch.einsum("ij,jk->ik", t(4, 4), t(4, 4)),
    "erfinv": lambda t: t(4).erfinv(),
    "exp": lambda t: t(4).exp(),
    "expm1": lambda t: t(4).expm1(),
    "grid_sample": lambda t: functional.grid_sample(
        t(1, 1, 4, 4), t(1, 2, 2, 2), align_corners=False
    ),
    "group_norm": lambda t: functional.group_norm(t(2, 4), 2),
    "hinge_embedding_loss": lambda t: functional.hinge_embedding_loss(t(4), t(4)),
    "huber_loss": lambda t: functional.huber_loss(t(4), t(4)),
    "index_copy": lambda t: t(4).index_copy(0, t.indices(1), t(1)),
    "index_put": lambda t: t(4).index_put((t.indices(1),), t(1)),
    "kl_div": lambda t: functional.kl_div(t(4), t(4), reduction="sum"),
    "l1_loss": lambda t: functional.l1_loss(t(4), t(4)),
    "layer_norm": lambda t: functional.layer_norm(t(2, 4), (4,), t(4), t(4)),
    "linalg_multi_dot": lambda t: linalg.multi_dot([t(4, 4), t(4, 4), t(4, 4)]),
    "linalg_vecdot": lambda t: linalg.vecdot(t(4), t(4)),
    "linalg_vector_norm": lambda t: linalg.vector_norm(t(4)),
    "linear": lambda t: functional.linear(t(2, 4), t(4, 4), t(4)),
    "log": lambda t: t(4).log(),
    "log10": lambda t: t(4).log10(),
    "log1p": lambda t: t(4).log1p(),
    "log2": lambda t: t(4).log2(),
    "log_softmax": lambda t: functional.log_softmax(t(4), -1),
    "logsumexp": lambda t: t(4).logsumexp(-1),
    "margin_ranking_loss": lambda t: functional.margin_ranking_loss(t(4), t(4), t(4)),
    "matmul": lambda t: t(4, 4).matmul(t(4, 4)),
    "mm": lambda t: t(4, 4).mm(t(4, 4)),
    "mse_loss": lambda t: functional.mse_loss(t(4), t(4)),
    "multi_margin_loss": lambda t: functional.multi_margin_loss(t(2, 4), t.indices(2)),
    "multilabel_margin_loss": lambda t: functional.multilabel_margin_loss(t(4), t.indices(4)),
    "mv": lambda t: t(4, 4).mv(t(4)),
    "native_layer_norm": lambda t: torch.native_layer_norm(t(2, 4), (4,), t(4), t(4), 1e-5)[0],
    "nll_loss": lambda t: functional.nll_loss(t(2, 4), t.indices(2)),
    "norm": lambda t: t(4).norm(),
    "pdist": lambda t: functional.pdist(t(4, 4)),
    "poisson_nll_loss": lambda t: functional.poisson_nll_loss(t(4), t(4)),
    "pow": lambda t: torch.pow(t(4), t(4)),
    "prelu": lambda t: functional.prelu(t(4), t(1)),
    "prod": lambda t: t(4).prod(),
    "reciprocal": lambda t: t(4).reciprocal(),
    "renorm": lambda t: t(4, 4).renorm(2, 0, 1.0),
    "rms_norm": lambda t: functional.rms_norm(t(2, 4), (4,)),
    "rsqrt": lambda t: torch.rsqrt(t(4)),
    "scaled_dot_product_attention": lambda t: functional.scaled_dot_product_attention(
        t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8)
    ),
    "scatter_add": lambda t: t(4).scatter_add(0, t.indices(1), t(1)),
    "sinh": lambda t: t(4).sinh(),
    "smooth_l1_loss": lambda t: functional.smooth_l1_loss(t(4), t(4)),
    "soft_margin_loss": lambda t: functional.soft_margin_loss(t(4), t.given(4)),
    "softmax": lambda t: functional.softmax(t(4), -1),
    "softplus": lambda t: functional.softplus(t(4)),
    "square": lambda t: t(4).square(),
    "stack": lambda t: torch.stack([t(4), t(4)]),
    "sum": lambda t: t(4).sum(-1, keepdim=True),
    "tan": lambda t: t(4).tan(),
    "tensordot": lambda t: torch.tensordot(t(4, 4), t(4, 4), 1),
    "triplet_margin_loss": lambda t: functional.triplet_margin_loss(t(2, 4), t(2, 4), t(2, 4)),
    "vdot": lambda t: torch.vdot(t(4), t(4)),
}


def named(names, known_wrong):
    """For parametrize: names of operations, those with a reason expected to fail."""
    marks = {name: [pytest.mark.xfail(reason=reason)] for name, reason in known_wrong.items()}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]

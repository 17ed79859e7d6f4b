"""The functions behind the modules. All issue tasks and return a Tensor at once; operands are of one float dtype.

An argument that may be given by position has the same position in PyTorch. Others are given by keyword.
"""

from ... import _instead
from ...tensors.functions import tanh
from .layers import (
    adaptive_avg_pool2d,
    avg_pool2d,
    conv1d,
    conv2d,
    dropout,
    embedding,
    gelu,
    leaky_relu,
    linear,
    log_softmax,
    max_pool2d,
    relu,
    scaled_dot_product_attention,
    sigmoid,
    silu,
    softmax,
    softplus,
)  # fmt: skip
from .losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)  # fmt: skip
from .normalization import batch_norm, group_norm, layer_norm, rms_norm

__all__ = [
    "adaptive_avg_pool2d", "avg_pool2d", "batch_norm", "binary_cross_entropy_with_logits", "conv1d", "conv2d",
    "cross_entropy", "dropout", "embedding", "gelu", "group_norm", "huber_loss", "kl_div", "l1_loss", "layer_norm",
    "leaky_relu", "linear", "log_softmax", "max_pool2d", "mse_loss", "nll_loss", "relu", "rms_norm",
    "scaled_dot_product_attention", "sigmoid", "silu", "smooth_l1_loss", "softmax", "softplus", "tanh",
]  # fmt: skip


_instead.explain_missing(globals(), "asyncsched.nn.functional", _instead.FUNCTIONAL, listed=True)

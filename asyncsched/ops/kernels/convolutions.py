"""Convolutions and their derivatives. Their kernels take several files: `winograd` comes first, see `conv`."""

from __future__ import annotations

from typing import Any

from ..declare import bounded, with_out
from ..op import Kernel, Op
from ..rules import conv as rules
from ..traits import Blas
from . import conv, winograd


def _bounded(kernel: Kernel, fast: Kernel, rule: Any, doc: str, absolute: float) -> Op:
    return bounded(with_out(kernel, rule, doc, blas=Blas.INSIDE), fast, 3e-6, absolute)


OPS = (
    _bounded(conv.conv2d, winograd.conv2d, rules.conv2d, "The convolution of images with a weight.", 1e-4),
    _bounded(
        conv.conv2d_input_grad, winograd.conv2d_input_grad, rules.conv2d_input_grad, "The gradient of the images.", 1e-4
    ),
    _bounded(
        conv.conv2d_weight_grad,
        winograd.conv2d_weight_grad,
        rules.conv2d_weight_grad,
        "The gradient of the weight.",
        2e-4,
    ),
)

"""Convolutions and their derivatives. Their kernels take several files: `winograd` comes first, see `conv`."""

from __future__ import annotations

from ..declare import bounded, with_products
from ..rules import conv as rules
from . import conv, winograd

_FORWARD = with_products(winograd.conv2d, rules.conv2d, "The convolution of images with a weight.")
_INPUT = with_products(winograd.conv2d_input_grad, rules.conv2d_input_grad, "The gradient of the images.")
_WEIGHT = with_products(winograd.conv2d_weight_grad, rules.conv2d_weight_grad, "The gradient of the weight.")
OPS = (
    bounded(_FORWARD, conv.conv2d, 3e-6, 1e-4),
    bounded(_INPUT, conv.conv2d_input_grad, 3e-6, 1e-4),
    bounded(_WEIGHT, conv.conv2d_weight_grad, 3e-6, 2e-4),
)

"""What the tests of optimisers share: their settings, two parameters, and something to learn."""

from __future__ import annotations

import numpy as np

import asyncsched as asc
from asyncsched.optim import SGD, Adam, AdamW, RMSprop

SHAPES = ((4, 4), (4,))
FORMS = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "weight_decay": 0.05}),
    (SGD, {"lr": 0.1, "momentum": 0.9}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05}),
    (AdamW, {"lr": 0.05}),
    (AdamW, {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    (Adam, {"lr": 0.05}),
    (Adam, {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    (RMSprop, {}),
    (RMSprop, {"lr": 0.05, "alpha": 0.9, "eps": 1e-6, "weight_decay": 0.1}),
    (RMSprop, {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.1}),
]


async def parameters(s: asc.Scheduler, *arrays: np.ndarray) -> list[asc.Tensor]:
    found = [await s.put(array) for array in arrays]
    for parameter in found:
        parameter.requires_grad = True
    return found


def draws() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in SHAPES]


BATCHES = [tuple(np.random.default_rng(i).standard_normal((2, 5, 4))) for i in range(50)]


def loss_of(w, b, x, y):
    """For tensors of either library."""
    return ((x @ w + b - y) ** 2).mean()


def changed(state: dict, **settings: object) -> dict:
    """A state whose only group has other settings."""
    return {**state, "param_groups": [state["param_groups"][0] | settings]}

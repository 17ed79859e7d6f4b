"""Training within a budget, on a device that runs things in an adverse order: the weights are always the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched.devices.sim import SimDevice
from asyncsched.ops.kernels import compiled

from . import networks

pytestmark = pytest.mark.one_loop
STEPS = 6


def network(name: str) -> nn.Module:
    rng = np.random.default_rng(0)
    if name == "transformer":
        return networks.Transformer(rng=rng)
    if name == "norms":
        layers = [
            nn.Conv2d(1, 6, 3, rng=rng),
            nn.BatchNorm2d(6),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 8, 2, rng=rng),
        ]
        layers += [nn.GroupNorm(2, 8), nn.BatchNorm2d(8, momentum=None), nn.LeakyReLU(), nn.AdaptiveAvgPool2d(1)]
        return nn.Sequential(*layers, nn.Flatten(), nn.RMSNorm(8), nn.Linear(8, 10, rng=rng))
    return nn.Sequential(getattr(networks, name)(nn, rng=rng), nn.Dropout(0.2, rng=rng), nn.LayerNorm(10))


@pytest.fixture(autouse=True)
def _compiled() -> None:
    """Before the first run: the loops of numba have other bits than the kernels that run until there are some."""
    compiled.finish()


async def trained(s: asc.Scheduler, name: str) -> list[bytes]:
    """The bytes of all weights and buffers after some steps."""
    x, target = networks.data("cnn" if name == "norms" else name, 32 if name == "transformer" else 256)
    model, window = network(name), s.window(2)
    kind = optim.RMSprop if name == "norms" else optim.AdamW
    optimizer = kind(model.parameters(), lr=0.01)
    for step in range(STEPS):
        batch = slice(step % 2 * len(x) // 2, (step % 2 + 1) * len(x) // 2)
        async with window:
            inputs, targets = await s.put(x[batch]), await s.put(target[batch].reshape(-1))
            loss = nn.cross_entropy(model(inputs), targets)
            del inputs, targets
            optimizer.zero_grad()
            loss.backward()
            if name == "norms":
                nn.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return [(await p).tobytes() for p in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize("name", ["mlp", "cnn", "norms", "transformer"])
async def test_a_budget_changes_no_bit(name):
    async with asc.Scheduler("cpu") as s:
        free = await trained(s, name)
    async with asc.Scheduler("cpu", max_ops=1) as s:
        assert await trained(s, name) == free
        least = s.statistics().peak_bytes
    limit = int(1.3 * least)
    async with asc.Scheduler("cpu", max_bytes=limit) as s:
        assert await trained(s, name) == free
        assert s.statistics().peak_bytes <= limit


@pytest.mark.parametrize("name", ["mlp", "cnn", "norms", "transformer"])
@pytest.mark.parametrize("seed", range(3))
async def test_an_adverse_order_and_poisoned_buffers_change_no_bit(name, seed):
    async with asc.Scheduler("cpu") as s:
        free = await trained(s, name)
    device = SimDevice(seed, 3, laziness=random.Random(seed).choice([0.0, 0.3, 0.6]))
    async with asc.Scheduler(device, max_ops=random.Random(seed).choice([2, 8, 64])) as s:
        assert await trained(s, name) == free

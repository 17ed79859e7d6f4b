"""What networks are made of on the card: the numbers of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import asyncsched as asc
from asyncsched import nn, optim

pytestmark = pytest.mark.one_loop
STEPS = 3
EPS = 1e-3  # gradients that are 0 but for rounding, of a bias before a norm, are not brought to the size of the others


def network() -> nn.Module:
    options: Any = {"dtype": "f8"}
    images = [nn.Conv2d(2, 4, 3, **options), nn.BatchNorm2d(4, **options), nn.SiLU(), nn.AvgPool2d(2)]
    images += [nn.GroupNorm(2, 4, **options), nn.LeakyReLU(), nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten()]
    rows = [nn.Linear(24, 6, **options), nn.RMSNorm(6, **options), nn.Softplus(), nn.BatchNorm1d(6, None, **options)]
    rows[-1].eps, rows[-1].momentum = 1e-5, None
    return nn.Sequential(*images, *rows, nn.Tanh(), nn.Sigmoid(), nn.Linear(6, 5, **options))


async def losses(
    s: asc.Scheduler, model: nn.Module, x: np.ndarray, target: np.ndarray, weight: np.ndarray
) -> list[Any]:
    """Of several kinds, of each step; and the norm of the gradients."""
    optimizer = optim.RMSprop(
        [{"params": list(model.parameters())[:2], "lr": 0.01}, {"params": list(model.parameters())[2:]}],
        momentum=0.5,
        eps=EPS,
    )
    adam, found = optim.Adam(list(model.parameters()), weight_decay=0.1, eps=EPS), []
    classes, weights = await s.put(target), await s.put(weight)
    for i in range(STEPS):
        optimizer.zero_grad()
        logits = model(await s.put(x[i]))
        chances = nn.softmax(logits.detach())
        loss = nn.cross_entropy(logits, classes, weights, label_smoothing=0.1)
        loss = loss + nn.nll_loss(nn.log_softmax(logits), classes) + nn.kl_div(nn.log_softmax(logits), chances)
        loss = loss + nn.smooth_l1_loss(logits, chances) + nn.binary_cross_entropy_with_logits(logits, chances)
        loss.backward()
        found += [loss.detach(), nn.clip_grad_norm_(model.parameters(), 0.5)]
        (optimizer if i else adam).step()
    return [await one.numpy() for one in [*found, *model.state_dict().values()]]


async def test_a_training_on_a_card_gives_what_one_on_the_host_gives(card):
    rng = np.random.default_rng(0)
    x, target, weight = rng.standard_normal((STEPS, 4, 2, 9, 8)), rng.integers(0, 5, 4), rng.uniform(0.5, 2, 5)
    target[1] = -100
    async with asc.Scheduler("cpu") as s:
        model = network()
        state = {name: await value.numpy() for name, value in model.state_dict().items()}
        expected = await losses(s, model, x, target, weight)
    async with asc.Scheduler("cuda", max_bytes="256 MiB") as s:
        model = network()
        model.load_state_dict({name: await s.put(value) for name, value in state.items()})
        got = await losses(s, model, x, target, weight)
        with pytest.raises(IndexError, match="but there are 5 classes"):
            await nn.nll_loss(asc.zeros((2, 5)), await s.put(np.array([0, 5])))
        del model
    for a, b in zip(got, expected, strict=True):
        assert_allclose(a, b, rtol=1e-9, atol=1e-12)


async def test_a_captured_step_in_use_gives_what_it_gives_uncaptured(card):
    """With gradients, too."""
    rng = np.random.default_rng(0)
    async with asc.Scheduler("cuda", max_bytes="256 MiB") as s:
        model = network().eval()
        parameters, classes = list(model.parameters()), await s.put(rng.integers(0, 5, 4))

        def step(x: asc.Tensor) -> Any:
            logits = model(x)
            loss = nn.cross_entropy(logits, classes) + nn.softplus(logits).mean()
            return loss.detach(), asc.autograd.grad(loss, parameters)

        x = await s.put(rng.standard_normal((4, 2, 9, 8)))
        expected, gradients = step(x)
        graph = await s.capture(step, x)
        for _ in range(2):
            got, found = graph(x)
            assert_allclose(await got.numpy(), await expected.numpy(), rtol=1e-12)
            for one, other in zip(found, gradients, strict=True):
                assert_allclose(await one.numpy(), await other.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.1, None])
async def test_a_batch_whose_error_the_card_tells_late_is_left_out_of_running_statistics(card, momentum):
    rng = np.random.default_rng(0)
    table, right, wrong = rng.standard_normal((5, 3)), rng.integers(0, 5, 8), np.array([1, 7, 2, 3])
    found = []
    for batches in ([right, wrong, right[::-1].copy()], [right, right[::-1].copy()]):
        async with asc.Scheduler("cuda", max_bytes="256 MiB") as s:
            norm, rows = nn.BatchNorm1d(3, momentum=momentum, dtype="f8"), await s.put(table)
            for batch in batches:  # nothing is awaited between
                norm(nn.embedding(await s.put(batch), rows))
            if len(batches) == 3:
                with pytest.raises(ExceptionGroup, match="IndexError|unseen|failed"):
                    await s.barrier()
            found.append([await buffer.numpy() for buffer in norm.buffers()])
            del norm, rows
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)

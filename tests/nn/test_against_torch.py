"""The same network from the same weights in PyTorch: the losses of 200 steps agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim

from . import networks

pytestmark = [pytest.mark.one_loop, pytest.mark.usefixtures("torch_may_block")]
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

STEPS, BATCH = 200, 16
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


def theirs(name: str, dtype: str) -> Any:
    torch.manual_seed(0)
    options = {"dtype": getattr(torch, dtype)}
    if name == "transformer":
        return networks.torch_transformer(torch, **options)
    return getattr(networks, name)(torch.nn, **options)


def ours(name: str, dtype: str) -> nn.Module:
    return networks.Transformer(dtype=dtype) if name == "transformer" else getattr(networks, name)(nn, dtype=dtype)


def torch_losses(model: Any, optimizer: Any, x: np.ndarray, target: np.ndarray) -> list[float]:
    inputs, targets = torch.tensor(x), torch.tensor(target)
    losses = []
    for step in range(STEPS):
        batch = slice(step * BATCH % len(x), step * BATCH % len(x) + BATCH)
        loss = torch.nn.functional.cross_entropy(model(inputs[batch]), targets[batch].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


async def our_losses(s: Any, model: Any, optimizer: Any, x: np.ndarray, target: np.ndarray) -> list[float]:
    inputs, targets = await s.put(x), await s.put(target)
    losses, window = [], s.window(2)
    for step in range(STEPS):
        batch = slice(step * BATCH % len(x), step * BATCH % len(x) + BATCH)
        async with window:
            loss = nn.cross_entropy(model(inputs[batch]), targets[batch].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return [float(loss) for loss in await asc.gather(*losses)]


@pytest.mark.parametrize("shape", [(5, 5), (6, 5, 5)])
@pytest.mark.parametrize("kind", ["bool", "float64"])
async def test_a_mask_of_the_module_means_what_it_means_there(s, shape, kind):
    """True is left out there, and takes part in the function."""
    x = np.random.default_rng(0).standard_normal((3, 5, 4))
    mask = np.random.default_rng(1).standard_normal(shape)
    mask[..., 0] = -1.0  # so that nothing is left out altogether
    mask = mask > 0 if kind == "bool" else mask
    module = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    expected = module(*[torch.tensor(x)] * 3, attn_mask=torch.tensor(mask))[0].detach().numpy()
    weights = {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}
    ours = nn.MultiheadAttention(4, 2, dtype=np.float64)
    ours.load_state_dict({name: await s.put(value) for name, value in weights.items()})
    given = await s.put(x)
    for inputs in ((given,), (given, given, given)):
        np.testing.assert_allclose(await ours(*inputs, attn_mask=await s.put(mask)), expected, rtol=1e-9)
    heads = np.tile(x, (2, 1, 1))
    theirs = torch.nn.functional.scaled_dot_product_attention(*[torch.tensor(heads)] * 3, torch.tensor(mask)).numpy()
    q = await s.put(heads)
    got = await nn.scaled_dot_product_attention(q, q, q, await s.put(mask))
    np.testing.assert_allclose(got, np.nan_to_num(theirs), rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
async def test_the_root_mean_square_of_small_numbers_is_theirs(s, dtype):
    x = np.array([[-0.0018, 0.003], [0.02, -0.01]], dtype)
    expected = torch.nn.functional.rms_norm(torch.tensor(x), (2,)).numpy()
    rounding = 2e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(await nn.rms_norm(await s.put(x), 2), expected, rtol=rounding)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
async def test_losses_agree(name, optimizer, dtype):
    their_model = theirs(name, dtype)
    weights = {key: value.detach().numpy().copy() for key, value in their_model.state_dict().items()}
    x, target = networks.data(name, 64, dtype)
    options = {"lr": 0.02, "momentum": 0.9} if optimizer == "SGD" else {"lr": 0.003}
    expected = torch_losses(
        their_model, getattr(torch.optim, optimizer)(their_model.parameters(), **options), x, target
    )
    async with asc.Scheduler("cpu") as s:
        model = ours(name, dtype)
        model.load_state_dict({key: await s.put(value) for key, value in weights.items()})
        got = await our_losses(s, model, getattr(optim, optimizer)(model.parameters(), **options), x, target)
    assert expected[-1] < expected[0] / 2
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype])

"""Random networks from the same weights in PyTorch: losses, gradients, parameters and buffers agree at 1e-9.

Each seed draws an architecture, a loss, an optimiser with groups, a schedule, and whether gradients are clipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched.optim import schedules

pytestmark = [pytest.mark.one_loop, pytest.mark.usefixtures("torch_may_block")]
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
SEEDS, STEPS, BATCH, CLASSES = 40, 5, 6, 4
# Gradients that are 0 but for rounding (of a bias before a norm) are not to be brought to the size of the others.
EPS = 1e-3
Spec = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


def pick(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def activation(rng: np.random.Generator) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    name = pick(
        rng, "ReLU", "GELU", "Sigmoid", "Tanh", "SiLU", "LeakyReLU", "Softplus", "Identity", "Softmax", "LogSoftmax"
    )
    return name, {"LeakyReLU": (0.1,), "Softplus": (2.0, 5.0), "Softmax": (1,), "LogSoftmax": (1,)}.get(name, ()), {}


def images(rng: np.random.Generator) -> tuple[Spec, tuple[int, ...]]:
    """Layers on (batch, 3, 12, 10), and the shape that comes in."""
    spec: Spec = []
    channels = 3
    for _ in range(rng.integers(1, 3)):
        out = 2 * int(rng.integers(1, 4))
        size = {"stride": pick(rng, 1, (2, 1)), "padding": pick(rng, 0, 1), "bias": bool(rng.integers(2))}
        spec.append(("Conv2d", (channels, out, pick(rng, 2, (3, 2))), size))
        channels = out
        momentum = pick(rng, 0.1, 0.4, None)
        norms: Spec = [("BatchNorm2d", (out,), {"momentum": momentum, "affine": bool(rng.integers(2))})]
        norms += [("GroupNorm", (2, out), {"eps": 1e-3}), ("Identity", (), {}), ("BatchNorm2d", (out, 1e-3), {})]
        spec += [pick(rng, *norms), activation(rng)]
    pools: Spec = [("AvgPool2d", (2,), {}), ("MaxPool2d", (2, 1), {}), ("AdaptiveAvgPool2d", ((2, 3),), {})]
    pools += [("AvgPool2d", (2, 1, 1), {"count_include_pad": False}), ("Identity", (), {})]
    return [*spec, pick(rng, *pools), ("AdaptiveAvgPool2d", (2,), {}), ("Flatten", (), {})], (3, 12, 10)


def sequences(rng: np.random.Generator) -> tuple[Spec, tuple[int, ...]]:
    """Layers on (batch, 3, 10)."""
    out = 2 * int(rng.integers(1, 4))
    conv = ("Conv1d", (3, out, 3), {"stride": pick(rng, 1, 2), "padding": 1, "dilation": 1})
    norms: Spec = [("BatchNorm1d", (out,), {}), ("GroupNorm", (out // 2, out), {}), ("Identity", (1, 2), {"x": 3})]
    return [conv, pick(rng, *norms), activation(rng), ("Flatten", (), {})], (3, 10)


def vectors(rng: np.random.Generator) -> tuple[Spec, tuple[int, ...]]:
    """Layers on (batch, 7)."""
    norms: Spec = [("RMSNorm", (9,), {}), ("LayerNorm", (9,), {}), ("BatchNorm1d", (9,), {"momentum": 0.3})]
    norms += [("LayerNorm", (9, 1e-3, True, False), {}), ("LayerNorm", (9,), {"elementwise_affine": False})]
    norms += [("RMSNorm", (9, 1e-2), {"elementwise_affine": False})]
    norms += [("BatchNorm1d", (9,), {"track_running_stats": False})]
    return [("Linear", (7, 9), {}), pick(rng, *norms), activation(rng)], (7,)


def built(of: Any, spec: Spec, width: int, dtype: Any) -> Any:
    made = {"Linear", "Conv1d", "Conv2d", "BatchNorm1d", "BatchNorm2d", "GroupNorm", "LayerNorm", "RMSNorm"}
    layers = [
        getattr(of, name)(*args, **options, **({"dtype": dtype} if name in made else {}))
        for name, args, options in spec
    ]
    return of.Sequential(*layers, of.Linear(width, CLASSES, dtype=dtype))


def losses(rng: np.random.Generator) -> tuple[str, dict[str, Any], np.ndarray]:
    """A loss module, its options with arrays, and targets for each step."""
    weight, numbers = {"weight": rng.uniform(0.5, 2, CLASSES)}, rng.integers(0, CLASSES, (STEPS, BATCH))
    real, chances = rng.standard_normal((STEPS, BATCH, CLASSES)), rng.uniform(0, 1, (STEPS, BATCH, CLASSES))
    chances /= chances.sum(axis=-1, keepdims=True)
    reduction = {"reduction": pick(rng, "mean", "sum")}
    found: list[tuple[str, dict[str, Any], np.ndarray]] = [
        ("CrossEntropyLoss", {"label_smoothing": 0.1, "ignore_index": 1} | pick(rng, {}, weight), numbers),
        ("CrossEntropyLoss", pick(rng, {}, weight), chances),
        ("NLLLoss", pick(rng, {}, weight), numbers),
        ("BCEWithLogitsLoss", pick(rng, {}, weight, {"pos_weight": weight["weight"]}), chances),
        ("KLDivLoss", {"log_target": False}, chances),
        ("L1Loss", {}, real),
        ("SmoothL1Loss", {"beta": 0.5}, real),
        ("MSELoss", {}, real),
    ]
    name, options, target = pick(rng, *found)
    return name, options | reduction, target


def optimiser(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    return pick(
        rng,
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("SGD", {"weight_decay": 0.1}),
        ("Adam", {"eps": EPS, "weight_decay": 0.1}),
        ("AdamW", {"eps": EPS}),
        ("RMSprop", {"eps": EPS, "momentum": 0.5}),
        ("RMSprop", {"eps": EPS, "alpha": 0.9, "weight_decay": 0.1}),
    )


def schedule(of: Any, optimizer: Any, which: int) -> Any:
    if which == 0:
        return of.StepLR(optimizer, 2, 0.5)
    if which == 1:
        return of.SequentialLR(
            optimizer, [of.LinearLR(optimizer, 0.2, 1.0, 2), of.CosineAnnealingLR(optimizer, 4)], [2]
        )
    return of.OneCycleLR(optimizer, 0.05, STEPS + 1)


def trained(
    of: Any, rules: Any, rates: Any, model: Any, loss: Any, batches: Any, plan: dict[str, Any]
) -> Iterator[Any]:
    """Train in either library: the same lines. Gives the loss of each step, and the gradients of the first."""
    parameters = list(model.parameters())
    groups = [{"params": parameters[:1], "lr": 0.03}, {"params": parameters[1:]}]
    optimizer = getattr(rules, plan["optimizer"][0])(groups, lr=0.02, **plan["optimizer"][1])
    rate = schedule(rates, optimizer, plan["schedule"])
    for i, (x, target) in enumerate(batches):
        optimizer.zero_grad()
        result = loss(model(x), target)
        result.backward()
        if plan["clip"]:
            yield of.utils.clip_grad_norm_(parameters, plan["clip"])
        if not i:
            yield from [parameter.grad for parameter in parameters]
        optimizer.step()
        rate.step()
        yield result.detach()


@pytest.mark.filterwarnings("ignore:Detected call of", "ignore:The epoch parameter", "ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_random_networks_agree(s, seed):
    rng = np.random.default_rng(seed)
    spec, shape = pick(rng, images, sequences, vectors)(rng)
    name, options, targets = losses(rng)
    plan = {"optimizer": optimiser(rng), "schedule": rng.integers(3), "clip": pick(rng, None, 0.3, 100.0)}
    data = rng.standard_normal((STEPS, BATCH, *shape))
    torch.manual_seed(seed)
    body = built(torch.nn, spec, 1, torch.float64)[:-1].eval()
    width = body(torch.tensor(data[0])).shape[1]
    theirs, ours = built(torch.nn, spec, width, torch.float64), built(nn, spec, width, np.float64)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    ours.load_state_dict({key: await s.put(value.numpy().copy()) for key, value in theirs.state_dict().items()})
    their_options = {key: torch.tensor(one) if isinstance(one, np.ndarray) else one for key, one in options.items()}
    our_options = {key: await s.put(one) if isinstance(one, np.ndarray) else one for key, one in options.items()}
    their_batches = [(torch.tensor(x), torch.tensor(y)) for x, y in zip(data, targets, strict=True)]
    our_batches = [(await s.put(x), await s.put(y)) for x, y in zip(data, targets, strict=True)]
    their_loss, our_loss = getattr(torch.nn, name)(**their_options), getattr(nn, name)(**our_options)
    rates = torch.optim.lr_scheduler
    expected = [
        one.clone().numpy() for one in trained(torch.nn, torch.optim, rates, theirs, their_loss, their_batches, plan)
    ]
    got = [one.detach() for one in trained(nn, optim, schedules, ours, our_loss, our_batches, plan)]
    for mine, yours in zip(await asc.gather(*got), expected, strict=True):
        assert_allclose(mine, yours, rtol=1e-9, atol=1e-12)
    for key, value in theirs.state_dict().items():
        assert_allclose(await ours.state_dict()[key], value.numpy(), rtol=1e-9, atol=1e-12)
    x = rng.standard_normal((BATCH, *shape))
    expected_use = theirs.eval()(torch.tensor(x)).detach().numpy()
    assert_allclose(await ours.eval()(await s.put(x)), expected_use, rtol=1e-9, atol=1e-12)

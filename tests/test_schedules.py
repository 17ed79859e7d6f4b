"""Schedules of learning rates against PyTorch's."""

from __future__ import annotations

import math
from typing import Any

import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.optim import SGD, AdamW, RMSprop, schedules

pytestmark = [pytest.mark.one_loop, pytest.mark.usefixtures("torch_may_block")]
STEPS = 30


def cosine_after_warm_up(of: Any, optimizer: Any) -> Any:
    parts = [of.LinearLR(optimizer, total_iters=6), of.CosineAnnealingLR(optimizer, 15), of.StepLR(optimizer, 2)]
    return of.SequentialLR(optimizer, parts, [6, 21])


MAKE = {
    "step": lambda of, o: of.StepLR(o, 7),
    "step gamma": lambda of, o: of.StepLR(o, 3, 0.5),
    "multi": lambda of, o: of.MultiStepLR(o, [11, 4, 4]),
    "multi gamma": lambda of, o: of.MultiStepLR(o, [2, 20], 0.5),
    "exponential": lambda of, o: of.ExponentialLR(o, 0.9),
    "lambda": lambda of, o: of.LambdaLR(o, lambda step: min(1.0, step / 10)),
    "cosine": lambda of, o: of.CosineAnnealingLR(o, 12),
    "cosine eta_min": lambda of, o: of.CosineAnnealingLR(o, 50, 0.01),
    "restarts": lambda of, o: of.CosineAnnealingWarmRestarts(o, 7),
    "restarts longer": lambda of, o: of.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    "linear": lambda of, o: of.LinearLR(o),
    "linear options": lambda of, o: of.LinearLR(o, 0.1, 0.7, 9),
    "sequential": cosine_after_warm_up,
    "one cycle": lambda of, o: of.OneCycleLR(o, 0.3, STEPS),
    "one cycle epochs": lambda of, o: of.OneCycleLR(o, [0.3, 0.4], None, 4, 10, 0.4, "linear", True, 0.8, 0.9),
    "one cycle phases": lambda of, o: of.OneCycleLR(o, 0.3, 40, div_factor=10.0, final_div_factor=50, three_phase=True),
    "one cycle alone": lambda of, o: of.OneCycleLR(o, 0.3, 31, cycle_momentum=False),
}


def of_ours(kind: Any = SGD, **options: Any) -> asc.optim.Optimizer:
    layer = nn.Linear(2, 2, rng=0)
    return kind([{"params": layer.weight, "lr": 0.2}, {"params": layer.bias}], lr=0.1, **options)


def of_pytorch(torch: Any, name: str, **options: Any) -> Any:
    layer = torch.nn.Linear(2, 2)
    kind = getattr(torch.optim, name)
    return kind([{"params": layer.weight, "lr": 0.2}, {"params": layer.bias}], lr=0.1, **options)


def found(optimizer: Any) -> list[float]:
    """Learning rates and momenta of the groups."""
    groups = optimizer.param_groups
    return [
        n for g in groups for n in (g["lr"], *(g[name] for name in ("momentum",) if name in g), *g.get("betas", ()))
    ]


@pytest.mark.filterwarnings("ignore:Detected call of", "ignore:The epoch parameter")
@pytest.mark.parametrize("kind", [SGD, AdamW, RMSprop])
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
async def test_rates_are_pytorchs(s, kind, make):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs, ours = of_pytorch(torch, kind.__name__), of_ours(kind)
    expected, schedule = make(torch.optim.lr_scheduler, theirs), make(schedules, ours)
    for _ in range(STEPS):
        assert found(ours) == pytest.approx(found(theirs), rel=1e-9, abs=1e-15)
        assert schedule.get_last_lr() == pytest.approx(expected.get_last_lr(), rel=1e-9, abs=1e-15)
        expected.step()
        schedule.step()


PLATEAUS: list[dict[str, Any]] = [
    {},
    {"mode": "max"},
    {"factor": 0.5, "patience": 2},
    {"patience": 1, "cooldown": 3},
    {"patience": 0, "min_lr": 0.02},
    {"patience": 0, "threshold": 0.3},
    {"patience": 0, "threshold": 0.3, "threshold_mode": "abs", "mode": "max"},
    {"patience": 0, "min_lr": [0.15, 0.001], "eps": 0.01},
]


@pytest.mark.parametrize("options", PLATEAUS)
async def test_a_plateau_is_pytorchs(s, options):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs, ours = of_pytorch(torch, "SGD"), of_ours()
    expected = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **options)
    schedule = schedules.ReduceLROnPlateau(ours, **options)
    for i in range(60):
        number = math.nan if i == 7 else math.sin(i * i) + 1 / (1 + i) - (i > 30)
        expected.step(number)
        schedule.step(number)
        assert found(ours) == pytest.approx(found(theirs), rel=1e-12)
        if i == 20:
            again = schedules.ReduceLROnPlateau(ours, **options)
            again.load_state_dict(schedule.state_dict())
            schedule = again


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
async def test_a_plateau_takes_what_is_infinite_as_pytorch_does(s, mode, threshold_mode):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    options: dict[str, Any] = {"mode": mode, "threshold_mode": threshold_mode, "patience": 0}
    theirs, ours = of_pytorch(torch, "SGD"), of_ours()
    expected = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **options)
    schedule = schedules.ReduceLROnPlateau(ours, **options)
    for number in (math.inf, 1.0, -math.inf, 0.5, 0.25, math.inf, 2.0):
        expected.step(number)
        schedule.step(number)
        assert found(ours) == pytest.approx(found(theirs), rel=1e-12)


@pytest.mark.parametrize("late", [False, True], ids=["made before loading", "made after the optimizer is loaded"])
@pytest.mark.parametrize(
    "make", [*MAKE.values(), lambda of, o: of.ReduceLROnPlateau(o, patience=0)], ids=[*MAKE, "plateau"]
)
async def test_a_saved_schedule_goes_on(s, make, late, tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    ours, other = of_ours(), of_ours()
    schedule, again = make(schedules, ours), None if late else make(schedules, other)
    number = [3.0] if isinstance(schedule, schedules.ReduceLROnPlateau) else []
    for _ in range(5):
        schedule.step(*number)
    await asc.save(tmp_path / "state", {"schedule": schedule.state_dict(), "optimizer": ours.state_dict()})
    state = await asc.load(tmp_path / "state")
    other.load_state_dict(state["optimizer"])
    again = make(schedules, other) if again is None else again
    again.load_state_dict(state["schedule"])
    for _ in range(5):
        assert found(other) == found(ours)
        schedule.step(*number)
        again.step(*number)


async def test_a_tensor_is_no_number_that_is_there(s):
    schedule = schedules.ReduceLROnPlateau(of_ours())
    with pytest.raises(TypeError, match="schedule.step.await loss.item.."):
        schedule.step(asc.ones(()))
    schedule.step(await asc.ones(()).item())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: schedules.OneCycleLR(o, 0.3), "needs total_steps, or epochs and steps_per_epoch"),
        (lambda o: schedules.OneCycleLR(o, [0.3], 9), "max_lr has 1 numbers for 2 groups"),
        (lambda o: schedules.OneCycleLR(o, 0.3, 9, pct_start=2), "pct_start=2 must be from 0 to 1"),
        (lambda o: schedules.OneCycleLR(o, 0.3, 9, anneal_strategy="no"), "anneal_strategy='no' 'cos' or"),
        (lambda o: schedules.LinearLR(o, 0), "start_factor=0 and end_factor=1.0 must be"),
        (lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o)], [3]), "1 schedulers need one milestone less"),
        (lambda o: schedules.SequentialLR(o, [schedules.LinearLR(of_ours())], []), "must be of this optimizer"),
        (lambda o: schedules.ReduceLROnPlateau(o, "mean"), "mode='mean' 'min' or 'max'"),
        (lambda o: schedules.ReduceLROnPlateau(o, factor=1), "factor=1 must be between 0 and 1"),
        (lambda o: schedules.ReduceLROnPlateau(o, min_lr=[0.1]), "min_lr has 1 numbers for 2 groups"),
        (lambda o: schedules.StepLR(o, 3).load_state_dict({"best": 3}), "the state has .'best'., and StepLR"),
        (lambda o: schedules.StepLR(o, 3).load_state_dict({"last_epoch": 3, "base_lrs": [1.0]}), "not of 2 groups"),
        (
            lambda o: cosine_after_warm_up(schedules, o).load_state_dict(schedules.StepLR(o, 3).state_dict()),
            "of 0 schedulers in sequence, not of 3",
        ),
        (lambda o: [one.step() for one in [schedules.OneCycleLR(o, 0.3, 3)] * 4], "of 3 steps, and was stepped more"),
    ],
)
async def test_what_makes_no_sense_is_refused(s, make, message):
    with pytest.raises(ValueError, match=message):
        make(of_ours())


async def test_restarts_begin_again_after_longer_and_longer_cycles() -> None:
    async with asc.Scheduler("cpu"):
        optimizer = of_ours()
        schedule = schedules.CosineAnnealingWarmRestarts(optimizer, 2, T_mult=2, eta_min=0.02)
        rates = []
        for _ in range(15):
            rates.append(round(optimizer.param_groups[0]["lr"], 6))
            schedule.step()
        four = [0.2, 0.02 + 0.09 * (1 + math.cos(math.pi / 4)), 0.11, 0.02 + 0.09 * (1 - math.cos(math.pi / 4))]
        assert rates[:6] == [0.2, 0.11, *[round(rate, 6) for rate in four]]
        assert [i for i, rate in enumerate(rates) if rate == 0.2] == [0, 2, 6, 14]
        for wrong in ({"T_0": 0}, {"T_0": 2, "T_mult": 0}):
            with pytest.raises(ValueError, match="must be at least 1"):
                schedules.CosineAnnealingWarmRestarts(optimizer, **wrong)

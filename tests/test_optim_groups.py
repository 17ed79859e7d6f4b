"""Groups of parameters, each with settings of its own."""

from __future__ import annotations

import pytest
from numpy.testing import assert_allclose

import asyncsched as asc
from asyncsched.optim import SGD, Adam, AdamW, RMSprop
from tests.optimisers import BATCHES, draws, loss_of, parameters

pytestmark = pytest.mark.one_loop


async def grouped(s: asc.Scheduler, kind: type = SGD, **options: object) -> asc.optim.Optimizer:
    first, second = await parameters(s, *draws())
    return kind([{"params": [first], "lr": 0.05}, {"params": second, "weight_decay": 0.1}], **options)


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW, RMSprop])
async def test_groups_end_where_pytorch_ends(s, kind, tmp_path, blockbuster):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    blockbuster.deactivate()
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs = [torch.tensor(a, requires_grad=True) for a in draws()]
    optimizer = getattr(torch.optim, kind.__name__)(
        [{"params": theirs[:1], "lr": 0.05}, {"params": theirs[1], "weight_decay": 0.1}], lr=0.02
    )
    ours = await grouped(s, kind, lr=0.02)
    for i, (x, y) in enumerate(BATCHES[:10]):
        for one in (ours, optimizer):
            one.param_groups[1]["lr"] = 0.02 + 0.01 * i
            one.zero_grad()
        loss_of(*ours.parameters, await s.put(x), await s.put(y)).backward()
        loss_of(*theirs, torch.from_numpy(x), torch.from_numpy(y)).backward()
        ours.step()
        optimizer.step()
    for p, q in zip(ours.parameters, theirs, strict=True):
        assert_allclose(await p, q.detach().numpy(), rtol=1e-12, atol=1e-12)
    await asc.save(tmp_path / "state", ours.state_dict())
    other = await grouped(s, kind, lr=0.3)
    other.load_state_dict(await asc.load(tmp_path / "state"))
    assert [dict(group.settings) for group in other.param_groups] == [dict(g.settings) for g in ours.param_groups]
    assert [group["lr"] for group in other.param_groups] == [0.05, 0.02 + 0.01 * 9]


async def test_a_setting_of_the_optimiser_is_that_of_all_groups(s):
    optimizer = await grouped(s, lr=0.02)
    assert repr(optimizer) == "SGD(2 parameters, lr=0.05, 0.02)"
    with pytest.raises(ValueError, match=r"lr is \[0.05, 0.02\] in the groups: read `optimizer.param_groups"):
        _ = optimizer.lr
    optimizer.lr = 0.5
    assert (optimizer.lr, [group["lr"] for group in optimizer.param_groups]) == (0.5, [0.5, 0.5])
    first, second = optimizer.param_groups
    assert dict(first) == {"params": first.params, "lr": 0.5, "momentum": 0, "weight_decay": 0, "nesterov": False}
    assert (len(first), "lr" in first, "betas" in first, second["params"]) == (5, True, False, optimizer.parameters[1:])
    assert optimizer.param_groups.index(second) == 1
    assert first != second
    second["momentum"] = 0.9
    with pytest.raises(ValueError, match="nesterov needs momentum"):
        optimizer.nesterov = True
    assert [group["nesterov"] for group in optimizer.param_groups] == [False, False]
    for wrong in ("beta", "params"):
        with pytest.raises(KeyError, match="is no setting of this optimiser: those are lr, momentum"):
            second[wrong] = 1
    with pytest.raises(TypeError, match="always has all settings"):
        del second["lr"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p, q: SGD([{"lr": 0.1}]), "group 0 must be a dict with 'params'"),
        (lambda p, q: SGD([{"params": [p]}, q]), "group 1 must be a dict with 'params'"),
        (
            lambda p, q: SGD([{"params": [p], "betas": 3}]),
            r"group 0 has \['betas'\], and the settings are lr, momentum",
        ),
        (lambda p, q: SGD([{"params": [p], "lr": -1}]), "lr must be a"),
        (lambda p, q: SGD([{"params": [p]}, {"params": [q, p]}]), "a parameter is there twice"),
        (lambda p, q: SGD([p, p]), "a parameter is there twice"),
        (lambda p, q: SGD([{"params": []}]), "no parameters"),
    ],
)
async def test_groups_that_make_no_sense_are_refused(s, make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(*await parameters(s, *draws()))

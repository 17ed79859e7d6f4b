"""What an optimiser saves and loads, and what it refuses to load."""

from __future__ import annotations

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.optim import SGD, AdamW
from tests.optimisers import FORMS, changed, parameters

pytestmark = pytest.mark.one_loop


async def moved(s: asc.Scheduler, kind: type, **options: object) -> asc.optim.Optimizer:
    """After a step, and with a parameter that has none."""
    p, q = await parameters(s, np.ones(3), np.ones(2))
    optimizer = kind([p, q], **options)
    p.sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("kind", "options"), FORMS)
async def test_loading_restores_every_setting(s, kind, options, tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    before, after = await moved(s, kind, **options), await moved(s, kind, lr=9.0)
    await asc.save(tmp_path / "state", before.state_dict())
    after.load_state_dict(await asc.load(tmp_path / "state"))  # where tuples have become lists
    for name, value in {**options, "lr": before.lr}.items():
        assert getattr(after, name) == value
    assert after.state_dict().keys() == before.state_dict().keys()
    assert [state.keys() for state in after.state] == [state.keys() for state in before.state]


async def test_another_optimisers_state_is_refused(s):
    plain, averaged, adam = await moved(s, SGD), await moved(s, SGD, momentum=0.9), await moved(s, AdamW)
    for mine, other in ((plain, adam), (averaged, adam), (adam, plain), (adam, averaged)):
        before = mine.state_dict()
        with pytest.raises(ValueError, match="does not fit: missing .* is it another optimiser's"):
            mine.load_state_dict(other.state_dict())
        mixed = {**before, "state": other.state_dict()["state"]}
        if other is not plain:  # which keeps nothing
            with pytest.raises(ValueError, match="the state of parameter 0 does not fit"):
                mine.load_state_dict(mixed)
        assert mine.state_dict().keys() == before.keys()
    plain.load_state_dict(averaged.state_dict())
    assert plain.momentum == 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: 3, "a state is a dict"),
        (lambda state: {"lr": 0.1, "state": state["state"]}, r"missing \['param_groups'\], unexpected \['lr'\]"),
        (lambda state: state | {"param_groups": [{"lr": 0.1, "params": [0, 1]}]}, "missing .'betas', 'eps', 'weight_d"),
        (
            lambda state: state | {"param_groups": state["param_groups"] * 2},
            "state of 2 groups of parameters, not of 1",
        ),
        (lambda state: state | {"param_groups": {}}, "param_groups must be a list"),
        (lambda state: state | {"param_groups": [3]}, "group 0 of the state of AdamW must be a dict, not int"),
        (lambda state: changed(state, params=[0]), "group 0 of the state of AdamW has 1 parameters, not 2"),
        (lambda state: state | {"state": {}}, "state must be a list"),
        (lambda state: state | {"state": []}, "state of 0 parameters, not of 2"),
        (lambda state: state | {"state": [{}, None]}, "the state of parameter 1 must be a dict"),
        (lambda state: without(state, "mean"), r"parameter 0 does not fit: missing \['mean'\], unexpected \[\]"),
        (lambda state: without(state, step=3), "step of parameter 0 must be a tensor, not int"),
        (lambda state: without(state, step=state["state"][0]["step"].astype("i4")), "step of parameter 0 is Tensor"),
        (lambda state: without(state, mean=np.ones(3)), "mean of parameter 0 must be a tensor, not ndarray"),
        (lambda state: without(state, mean=state["state"][0]["mean"][:2]), "mean of parameter 0 is Tensor"),
        (lambda state: without(state, mean=state["state"][0]["mean"].astype("f4")), "mean of parameter 0 is Tensor"),
    ],
)
async def test_a_damaged_state_is_refused_and_changes_nothing(s, change, message):
    optimizer = await moved(s, AdamW)
    before = optimizer.state_dict()
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.load_state_dict(change(changed(before, lr=0.5)))
    assert optimizer.lr == 1e-3
    assert [state.keys() for state in optimizer.state] == [state.keys() for state in before["state"]]
    optimizer.load_state_dict(before)


def without(state: dict, *names: str, **changed: object) -> dict:
    """A state whose first parameter lacks something, or has something else."""
    first = {name: kept for name, kept in (state["state"][0] | changed).items() if name not in names}
    return {**state, "state": [first, *state["state"][1:]]}


async def test_a_state_of_another_scheduler_is_refused(s):
    optimizer = await moved(s, SGD, momentum=0.9)
    async with asc.Scheduler("cpu") as other:
        with pytest.raises(ValueError, match="device and scheduler"):
            optimizer.load_state_dict((await moved(other, SGD, momentum=0.9)).state_dict())

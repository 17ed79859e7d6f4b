"""Modules: what is found in them, and states taken and set."""

from __future__ import annotations

import re

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn

pytestmark = pytest.mark.one_loop


class Net(nn.Module):
    """Modules in an attribute, in a list and in a module; a buffer; private things; a weight under two names."""

    def __init__(self) -> None:
        self.first = nn.Linear(3, 4, rng=0)
        self.layers = [nn.Sequential(nn.Linear(4, 4, rng=1), nn.ReLU()), nn.Dropout(0.5, rng=2)]
        self.tied = nn.Linear(3, 4, bias=False, rng=3)
        self.tied.weight = self.first.weight
        self.offset = asc.zeros(4, dtype=np.float32)
        self._seen = asc.zeros(3)

    def forward(self, x: asc.Tensor, scale: float = 1) -> asc.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x * scale + self.offset


NAMES = ["first.weight", "first.bias", "layers.0.0.weight", "layers.0.0.bias"]


async def test_parameters_are_found_once_in_the_order_they_were_set(s):
    net = Net()
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert [id(p) for p in net.parameters()] == [id(p) for _, p in net.named_parameters()]
    net.first.bias.requires_grad = False
    assert "first.bias" not in dict(net.named_parameters())
    assert "first.bias" in net.state_dict()


async def test_modules_are_found_with_their_names(s):
    net = Net()
    names = ["", "first", "layers.0", "layers.0.0", "layers.0.1", "layers.1", "tied"]
    assert [name for name, _ in net.named_modules()] == names
    assert next(net.modules()) is net


async def test_training_and_use(s):
    net = Net()
    assert all(module.training for module in net.modules())
    assert net.eval() is net
    assert not any(module.training for module in net.modules())
    assert all(module.training for module in net.train().modules())


async def test_calling_gives_a_tensor_at_once_and_gradients_come_and_go(s):
    net = Net().eval()
    y = net(await s.put(np.ones((2, 3), np.float32)), scale=2)
    assert y.shape == (2, 4)
    y.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


async def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Module does not define forward"):
        nn.Module()(1)


async def test_a_sequence_is_had_by_number_and_its_repr_shows_shapes(s):
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU())
    assert len(model) == 2
    assert [type(module) for module in model] == [nn.Linear, nn.ReLU]
    assert repr(model) == "Sequential(0=Linear(weight=(4, 3)), 1=ReLU())"


async def test_a_state_stays_what_it_was(s):
    model = nn.Linear(2, 2, rng=0)
    state = model.state_dict()
    before = await state["weight"].numpy()
    (model(await s.put(np.ones((1, 2), np.float32))).sum()).backward()
    asc.optim.SGD(model.parameters(), lr=1.0).step()
    assert (await model.weight.numpy() != before).all()
    assert (await state["weight"].numpy() == before).all()
    assert not state["weight"].requires_grad
    model.load_state_dict(state)
    assert (await model.weight.numpy() == before).all()
    assert model.weight.requires_grad


async def test_a_state_has_buffers_both_names_of_a_shared_weight_and_extra_states(s):
    net, other = Net(), Net()
    state = net.state_dict()
    assert set(state) == {*NAMES, "tied.weight", "offset", "layers.1._extra_state"}
    other.layers[1](asc.ones(3))  # draws
    other.load_state_dict(state)
    assert other.layers[1].get_extra_state() == net.layers[1].get_extra_state()
    del state["layers.1._extra_state"]
    other.load_state_dict(state)


@pytest.mark.parametrize("missing", [[], ["bias"]])
@pytest.mark.parametrize("unexpected", [[], ["gain"]])
async def test_names_that_do_not_fit_are_refused_and_nothing_is_set(s, missing, unexpected):
    """Also where they are only missing, or only too many."""
    model = nn.Linear(2, 2, rng=0)
    before = await model.weight.numpy()
    state = {name: tensor * 0 for name, tensor in model.state_dict().items() if name not in missing}
    state |= dict.fromkeys(unexpected, state["weight"])
    if missing or unexpected:
        with pytest.raises(KeyError, match=re.escape(f"missing {missing}, unexpected {unexpected}")):
            model.load_state_dict(state)
        assert (await model.weight.numpy() == before).all()
    model.load_state_dict(state, strict=not (missing or unexpected))
    assert not (await model.weight).any()


@pytest.mark.parametrize(
    ("bias", "error", "message"),
    [
        (np.zeros(3, np.float32), ValueError, r"bias: the state has \(3,\) in float32, the module \(2,\)"),
        (np.zeros(2), ValueError, "bias: the state has .* in float64, the module .* in float32"),
        (None, TypeError, "bias: a state holds the scheduler's tensors, not numpy.ndarray: `await s.put"),
    ],
)
async def test_a_tensor_that_does_not_fit_is_named_and_nothing_is_set(s, bias, error, message):
    model = nn.Linear(2, 2, rng=0)
    before = await model.weight.numpy()
    given = np.zeros(2, np.float32) if bias is None else await s.put(bias)
    with pytest.raises(error, match=message):
        model.load_state_dict({"weight": await s.put(np.zeros((2, 2), np.float32)), "bias": given})
    assert (await model.weight.numpy() == before).all()


@pytest.mark.parametrize("wrong", ["model.safetensors", None, []])
async def test_what_is_no_state_is_refused_by_modules_and_schedules(s, wrong):
    model = nn.Linear(2, 2)
    for one in (model, asc.optim.schedules.StepLR(asc.optim.SGD(model.parameters(), lr=0.1), 2)):
        with pytest.raises(TypeError, match=r"a state is a dict, as from `state_dict\(\)` or `await asc.load\(path\)`"):
            one.load_state_dict(wrong)
    with pytest.raises(KeyError, match="unexpected \\[0, 'a'\\]"):
        model.load_state_dict(model.state_dict() | {0: 1, "a": 2})


async def test_a_state_of_another_scheduler_is_refused():
    async with asc.Scheduler("cpu") as s, asc.Scheduler("cpu") as other:
        model = nn.Linear(2, 2, scheduler=s)
        with pytest.raises(ValueError, match="weight: the state is on cpu, the module on cpu"):
            model.load_state_dict(nn.Linear(2, 2, scheduler=other).state_dict())


@pytest.mark.parametrize("wrong", [nn.relu, nn.ReLU, None, [nn.ReLU()]])
async def test_a_sequence_is_of_modules(wrong):
    cure = r"Sequential\(\*layers\)" if isinstance(wrong, list) else r"nn\.ReLU\(\) is one"
    with pytest.raises(TypeError, match=f"is no module: .*{cure}"):
        nn.Sequential(nn.ReLU(), wrong)


async def test_an_extra_state_that_does_not_fit_leaves_the_tensors_as_they_were(s):
    net = Net()
    state = {name: x * 0 if isinstance(x, asc.Tensor) else {"no": "state"} for name, x in net.state_dict().items()}
    before = await net.first.weight
    with pytest.raises((ValueError, KeyError)):
        net.load_state_dict(state)
    assert (await net.first.weight).tobytes() == before.tobytes()


async def test_extra_state_for_a_module_that_has_none():
    with pytest.raises(ValueError, match="ReLU has no extra state"):
        nn.ReLU().set_extra_state(1)

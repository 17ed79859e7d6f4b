"""Where a name is PyTorch's, a positional argument means what it means there, or is refused."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import asyncsched as asc
from asyncsched import autograd, nn, optim

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# Other names for the same: ours, and those of PyTorch that it stands for.
SAME = {
    "axis": {"dim"},
    "fn": {"func"},
    "gradient": {"gradient", "grad_tensors"},
    "gradients": {"grad_outputs"},
    "indices": {"input"},
    "logits": {"input"},
    "modules": {"modules", "sequential"},
    "output": {"tensors"},
    "parameters": {"params"},
    "saved": {"state_dict"},
    "state": {"state", "state_dict"},
    "x": {"input"},
}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def pairs() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """Every public function and method of ours that PyTorch has, too: its name, ours and theirs."""
    yield "Tensor.backward", asc.Tensor.backward, torch.Tensor.backward
    for ours, theirs in (
        (autograd, [torch.autograd]),
        (nn, [torch.nn, torch.nn.functional, torch.nn.utils]),
        (optim, [torch.optim]),
        (optim.schedules, [torch.optim.lr_scheduler]),
    ):
        for name in ours.__all__:
            found = [getattr(module, name) for module in theirs if hasattr(module, name)]
            one = getattr(ours, name)
            if not found or not callable(one):
                continue
            if not inspect.isclass(one):
                yield name, one, found[0]
                continue
            for method in (name for name in dir(one) if not name.startswith("_") or name == "__init__"):
                if inspect.isfunction(getattr(one, method)) and hasattr(found[0], method):
                    yield f"{name}.{method}", getattr(one, method), getattr(found[0], method)


def positional(fn: Callable[..., Any]) -> list[str]:
    """The names of the parameters that may be given by position."""
    try:
        parameters = inspect.signature(fn).parameters.values()
        if [one.kind for one in parameters] != [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]:
            return [one.name for one in parameters if one.kind in POSITIONAL]
    except ValueError:
        pass  # written in C++
    text = inspect.getdoc(fn) or ""
    signature = re.search(rf"{fn.__name__}\((?:[^()]|\([^()]*\))*\)", text)
    assert signature is not None
    (function,) = ast.parse(f"def {signature[0]}: pass").body
    assert isinstance(function, ast.FunctionDef)
    return [argument.arg for argument in function.args.args]


def takes_anything(fn: Callable[..., Any]) -> bool:
    """Whether any number of arguments may be given by position."""
    try:
        return any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in inspect.signature(fn).parameters.values())
    except ValueError:
        return False


PAIRS = list(pairs())


def test_all_is_compared():
    names = {name.partition(".")[0] for name, _, _ in PAIRS}
    ours_alone = {"ExponentialAverage", "Group", "Schedule", "schedules"}
    assert {*nn.__all__, *optim.__all__, *optim.schedules.__all__} - names == ours_alone
    assert {"grad", "gradcheck", "no_grad", "Tensor"} <= names


@pytest.mark.parametrize(("ours", "theirs"), [pytest.param(a, b, id=name) for name, a, b in PAIRS])
def test_a_position_means_what_it_means_in_pytorch(ours, theirs):
    mine, yours = positional(ours), positional(theirs)
    if takes_anything(theirs):
        mine = mine[: len(yours)]
    for name, there in zip(mine, yours, strict=False):
        assert there == name or there in SAME.get(name, ()), f"{mine} and {yours}"
    assert len(mine) <= len(yours), f"{mine} and {yours}"

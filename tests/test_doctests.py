"""The examples in docstrings run, and print what they say.

Each docstring has the names of its own module, and `asc`, `np` and `asyncio`.
"""

from __future__ import annotations

import asyncio
import doctest
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import asyncsched as asc

from .test_house import MODULES

# What a user meets first. Whatever else has an example is run, too.
MEETS_FIRST: list[Any] = [
    asc,
    asc.arange,
    asc.concat,
    asc.exact,
    asc.load,
    asc.matmul,
    asc.no_grad,
    asc.save,
    asc.sum,
    asc.where,
]
MEETS_FIRST += [asc.autograd.grad, asc.nn.Linear, asc.nn.Module, asc.nn.Sequential, asc.nn.cross_entropy]
MEETS_FIRST += [asc.optim.AdamW, asc.optim.SGD, asc.Scheduler, asc.Scheduler.put, asc.Scheduler.submit]
MEETS_FIRST += [asc.Scheduler.call, asc.Scheduler.barrier, asc.Scheduler.scope, asc.Scheduler.window, asc.run]
MEETS_FIRST += [asc.Scheduler.pipeline, asc.Scheduler.capture, asc.Scheduler.statistics, asc.Scheduler.load]
MEETS_FIRST += [asc.Tensor, asc.Tensor.numpy, asc.Tensor.item, asc.Task, asc.gather, asc.Scope, asc.Window, asc.Graph]
MEETS_FIRST += [asc.Pipeline, asc.Batcher, asc.Stepper, asc.ImplicitBarrierError, asc.QueueFull, asc.TaskTooLarge]
MEETS_FIRST += [asc.Timer, asc.measure]

pytestmark = pytest.mark.usefixtures("may_block")
NEEDS_NUMBA = "ops.kernels.loops"  # which nobody imports but where that is installed


def examples() -> list[doctest.DocTest]:
    """Every docstring of the package with an example in it."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = [f"asyncsched.{name}".rstrip(".") for name in sorted(MODULES) if name not in ("__main__", NEEDS_NUMBA)]
    found = [test for name in names for test in finder.find(import_module(name), name)]
    return [test for test in found if test.examples]


EXAMPLES = examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_an_example_prints_what_it_says(example):
    example.globs |= {"asc": asc, "np": np, "asyncio": asyncio}
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(example, out=report.append)
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("thing", MEETS_FIRST, ids=lambda thing: thing.__name__)
def test_what_a_user_meets_first_has_an_example(thing):
    assert ">>> " in (thing.__doc__ or "")


@pytest.mark.parametrize("name", ["add", "rsub", "matmul", "lt", "neg", "invert", "pow", "rpow"])
def test_operators_say_what_they_do(name):
    assert getattr(asc.Tensor, f"__{name}__").__doc__

"""The examples in docstrings run, and print what they say.

Each docstring has the names of its own module, and `asc`, `np` and `asyncio`. Short ones are cells: what one may type
in `python -m asyncio` or a notebook, where a scheduler `s` is open. They await, and run nothing themselves.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
from importlib import import_module
from types import CodeType
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
CELLS = ("asyncsched.tensors.functions", "asyncsched.nn", "asyncsched.optim")
CELL = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def is_cell(example: doctest.DocTest) -> bool:
    return example.name.startswith(CELLS) and "run(" not in example.docstring


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_an_example_prints_what_it_says(example):
    example.globs |= {"asc": asc, "np": np, "nn": asc.nn, "optim": asc.optim, "asyncio": asyncio}
    if is_cell(example):
        asyncio.run(in_cells(example))
    else:
        printed(example)


def printed(example: doctest.DocTest) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(example, out=report.append)
    assert not runner.failures, "".join(report)


async def in_cells(example: doctest.DocTest) -> None:
    """Compute the values that are awaited, one after the other, and compare what is printed of each."""
    async with asc.Scheduler("cpu", streams=1) as s:
        names = example.globs | {"s": s}
        for cell in example.examples:
            if not cell.want:
                await done(compile(cell.source, example.name, "exec", flags=CELL), names)
            else:
                value = await done(compile(cell.source.strip(), example.name, "eval", flags=CELL), names)
                assert f"{value!r}\n" == cell.want, cell.source
        names.clear()
        example.globs.clear()
        del value


async def done(code: CodeType, names: dict[str, Any]) -> Any:
    value = eval(code, names)
    return await value if inspect.iscoroutine(value) else value


# What nobody makes, or what the example of another shows.
WITHOUT_EXAMPLE = {
    "AsyncSchedError", "Device", "Generator", "Group", "Last", "Load", "Optimizer", "Schedule", "Statistics",
    "record_stream",
}  # fmt: skip


@pytest.mark.parametrize("place", [asc, asc.linalg, asc.fft, asc.random, asc.nn, asc.optim, asc.optim.schedules])
def test_every_public_function_and_class_has_an_example(place):
    things = {name: getattr(place, name) for name in place.__all__}
    ours = {name: one for name, one in things.items() if getattr(one, "__module__", "").startswith("asyncsched")}
    lacking = [name for name, one in ours.items() if callable(one) and ">>> " not in (inspect.getdoc(one) or "")]
    assert set(lacking) <= WITHOUT_EXAMPLE


@pytest.mark.parametrize("thing", MEETS_FIRST, ids=lambda thing: thing.__name__)
def test_the_first_names_that_users_meet_have_an_example(thing):
    assert ">>> " in (thing.__doc__ or "")


@pytest.mark.parametrize("name", ["add", "rsub", "matmul", "lt", "neg", "invert", "pow", "rpow"])
def test_operators_say_what_they_do(name):
    assert getattr(asc.Tensor, f"__{name}__").__doc__

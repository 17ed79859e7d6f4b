"""Rows of networks beside PyTorch: `python -m bench.rows`.

forward  each row alone     derivatives  each with its backward pass

Each library has a child process of its own, at its best: PyTorch with as many threads as there are processors, ours on
one stream and on as many, and, where numba is installed, with the loops that it compiles. OpenBLAS chooses its kernel
for this processor, whatever the environment says; which that is is printed.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from .measure import ROOT, Asked, Contestant, Report, compare, cpus, run_bench, timed

Shapes = tuple[tuple[int, ...], ...]
NO_TORCH = "PyTorch: not installed, skipped: each ratio is to one stream (`pip install torch`)"
NO_NUMBA = "numba: not installed, skipped (`pip install numba`)"
SETTLE = 0.12  # seconds: OpenBLAS's threads spin on for some 25 ms
ROUND = 0.2  # seconds a round takes at least
_MISSED = "targets missed: "
_FORCED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass(frozen=True)
class Work:
    """One row: its operands, what is called in `nn` and in `torch.nn.functional`, and the ratio aimed at."""

    shapes: Shapes
    ours: str
    theirs: str
    options: dict[str, Any]
    asked: float | None = None
    with_numba: float | None = None


_WIDE = ((4096, 1024),)
WORKS = {
    "layer_norm": Work(((4096, 768), (768,), (768,)), "layer_norm", "layer_norm", {}, 3.2, 0.9),
    "gelu": Work(((1024, 2048),), "gelu", "gelu", {}, 4.5, 1.0),
    "gelu, tanh": Work(((1024, 2048),), "gelu", "gelu", {"approximate": "tanh"}),
    "softmax": Work(_WIDE, "softmax", "softmax", {}, 1.9, 1.0),
    "log_softmax": Work(_WIDE, "log_softmax", "log_softmax", {}),
    "cross_entropy": Work(_WIDE, "cross_entropy", "cross_entropy", {}, 1.5, 1.0),
    "relu": Work(((1024, 2048),), "relu", "relu", {}),
    "attention": Work(
        ((8, 8, 256, 64),) * 3, "scaled_dot_product_attention", "scaled_dot_product_attention", {}, 0.65
    ),
    "conv2d": Work(((32, 32, 32, 32), (64, 32, 3, 3), (64,)), "conv2d", "conv2d", {"padding": 1}, 1.3, 1.0),
}  # fmt: skip
BACKWARD = " and backward"


def forward(quick: bool, report: Report) -> None:
    _bench(WORKS, quick, report)


def derivatives(quick: bool, report: Report) -> None:
    _bench([name + BACKWARD for name in WORKS], quick, report)


def _bench(names: Any, quick: bool, report: Report) -> None:
    kinds = {"PyTorch": "torch", "1 stream": "1"} | ({f"{cpus()} streams": str(cpus())} if cpus() > 1 else {})
    if importlib.util.find_spec("torch") is None:
        del kinds["PyTorch"]
        _note(report, NO_TORCH)
    if importlib.util.find_spec("numba") is None:
        _note(report, NO_NUMBA)
    else:
        kinds |= {f"{title}, numba": f"{kind} numba" for title, kind in kinds.items() if kind.isdigit()}
    children = {title: _child(kind, quick) for title, kind in kinds.items()}
    for name in names:
        contestants = [_contestant(name, title, child, next(iter(children))) for title, child in children.items()]
        report.rows += compare(contestants, 1 if quick else 7, settle=SETTLE)
    _note(report, f"OpenBLAS's kernel in our processes: {children['1 stream'].ask('kernel')}")
    missed = [f"{row.name} ({row.ratio:.2f}x)" for row in report.rows if row.met is False]
    report.notes[:] = [note for note in report.notes if not note.startswith(_MISSED)]
    _note(report, f"{_MISSED}{', '.join(missed) or 'none'}")


def _note(report: Report, text: str) -> None:
    if text not in report.notes:
        report.notes.append(text)


def _contestant(name: str, title: str, child: Child, first: str) -> Contestant:
    work = WORKS.get(name)
    ratio = None
    if work is not None and title != first == "PyTorch":
        ratio = work.with_numba if "numba" in title else work.asked
    asked = None if ratio is None else Asked(ratio=ratio)
    return Contestant(f"{name}, {title}", lambda: float(child.ask(name)), 1, "ms", f"{name}, {first}", asked)


# -- children -----------------------------------------------------------------------------------------------------


class Child:
    """A process that answers the name of a work with the seconds that it takes."""

    def __init__(self, kind: str, quick: bool) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in _FORCED}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.rows", "child", kind, str(int(quick))],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        atexit.register(self._process.communicate)

    def ask(self, question: str) -> str:
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        print(question, file=questions, flush=True)
        return answers.readline().strip()


@cache
def _child(kind: str, quick: bool) -> Child:
    """One for both sections."""
    return Child(kind, quick)


def operands(work: Work, quick: bool) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any] | None]:
    """Arrays of ordinary numbers, and for a loss the classes that are right."""
    rng = np.random.default_rng(0)
    first, *rest = work.shapes
    shapes = [(2, *first[1:]), *[(2, *s[1:]) if s == first else s for s in rest]] if quick else work.shapes
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return arrays, rng.integers(0, first[1], len(arrays[0])) if work.ours == "cross_entropy" else None


def answer(kind: str, quick: bool) -> None:
    """In the child: answer each line of standard input."""
    if kind == "torch":
        _answer_torch(quick)
    else:
        asyncio.run(_answer_ours(int(kind.split()[0]), "numba" in kind, quick))


def _round(call: Callable[[int], float], quick: bool) -> float:
    """Seconds for one of as many calls as take long enough."""
    once = call(1)
    count = 1 if quick else ceil(ROUND / max(min(once, call(1)), 1e-6))
    return call(count) / count


def _answer_torch(quick: bool) -> None:
    import torch

    torch.set_num_threads(cpus())
    for line in sys.stdin:
        name = line.strip()
        run = _torch_call(torch, WORKS[name.removesuffix(BACKWARD)], name.endswith(BACKWARD), quick)
        print(_round(lambda n, run=run: timed(lambda: [run() for _ in range(n)]), quick), flush=True)


def _torch_call(torch: Any, work: Work, backward: bool, quick: bool) -> Callable[[], object]:
    arrays, target = operands(work, quick)
    tensors = [torch.tensor(array, requires_grad=backward) for array in arrays]
    options: dict[str, Any] = dict(work.options)
    args = tensors + ([] if target is None else [torch.tensor(target)])
    if work.theirs == "layer_norm":
        args, options = tensors[:1], {"normalized_shape": arrays[1].shape, "weight": tensors[1], "bias": tensors[2]}
    if "softmax" in work.theirs:
        options["dim"] = -1
    function = partial(getattr(torch.nn.functional, work.theirs), *args, **options)
    if not backward:
        return function
    gradient = torch.ones(function().shape)
    return lambda: torch.autograd.grad(function(), tensors, gradient)


async def _answer_ours(streams: int, numba: bool, quick: bool) -> None:
    import asyncsched as asc
    from asyncsched.ops.kernels import compiled

    compiled._started = not numba
    compiled.finish()
    async with asc.Scheduler("cpu", streams=streams) as s:
        for line in iter(sys.stdin.readline, ""):
            name = line.strip()
            if name == "kernel":
                print(_blas_kernel(), flush=True)
                continue
            run = await _our_call(asc, s, WORKS[name.removesuffix(BACKWARD)], name.endswith(BACKWARD), quick)
            count = 1
            took = [await _timed(s, run, 1), await _timed(s, run, 1)]
            if not quick:
                count = ceil(ROUND / max(min(took), 1e-6))
            print(await _timed(s, run, count) / count, flush=True)


async def _our_call(asc: Any, s: Any, work: Work, backward: bool, quick: bool) -> Callable[[], object]:
    arrays, target = operands(work, quick)
    tensors = [await s.put(array) for array in arrays]
    args = [*tensors, *([] if target is None else [await s.put(target)])]
    if work.ours == "layer_norm":
        args.insert(1, tensors[1].shape)
    function = partial(getattr(asc.nn, work.ours), *args, **work.options)
    if not backward:
        return function
    for tensor in tensors:
        tensor.requires_grad = True
    gradient = await s.put(np.ones(function().shape, np.float32))
    return lambda: asc.autograd.grad(function(), tensors, [gradient])


async def _timed(s: Any, run: Callable[[], object], count: int) -> float:
    window = s.window(4)
    started = perf_counter()
    for _ in range(count):
        async with window:
            run()
    await s.barrier()
    return perf_counter() - started


def _blas_kernel() -> str:
    from threadpoolctl import threadpool_info

    return ", ".join(sorted({str(lib.get("architecture")) for lib in threadpool_info() if lib["user_api"] == "blas"}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        answer(sys.argv[2], sys.argv[3] == "1")
    else:
        run_bench("rows", {"forward": forward, "derivatives": derivatives})

"""Every operation against eager NumPy: what is planned, and what the kernel gives, in bytes and strides."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from asyncsched.ops import TABLE, Meta, Op, Plan, meta, plan, resolve
from asyncsched.ops.kernels import compiled

# The most telling public class of what NumPy raised, for its private subclasses.
_ERRORS = (np.exceptions.AxisError, ZeroDivisionError, OverflowError, TypeError, IndexError, ValueError)
# These may say "unknown" of a result that happens to be C-contiguous.
_RETICENT = ("getitem_advanced",)
DTYPES = ("?", "i1", "u1", "i4", "i8", "f2", "f4", "f8", "c8", "c16")


def meta_of(operand: Any) -> Any:
    """The meta of an array; scalars as they are."""
    if isinstance(operand, np.ndarray):
        return meta(operand.shape, operand.dtype, operand.flags.c_contiguous)
    return operand


def owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def strides(array: np.ndarray) -> tuple[int, ...]:
    """The strides that matter: none of an empty array, and none of an axis of length one."""
    return tuple([s for s, n in zip(array.strides, array.shape, strict=True) if n > 1]) if array.size else ()


def peak_of(call: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy allocate in a call. What is compiled in the background is done before."""
    compiled.finish()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_same(got: Any, expected: np.ndarray) -> None:
    """Equal in dtype, shape, bytes and strides."""
    got = np.asarray(got)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()
    assert strides(got) == strides(expected)


class Check:
    """Compares one row with eager NumPy for given operands."""

    def __init__(self, name: str) -> None:
        self.op: Op = TABLE[name]

    def __call__(self, eager: Callable[[], Any], *operands: Any, **options: Any) -> Plan | None:
        """Compare with what `eager()` returns or raises; the plan if it returned."""
        with np.errstate(all="ignore"):
            try:
                expected = np.array(result) if not isinstance(result := eager(), np.ndarray) else result
            except _ERRORS as error:
                self.raises(error, operands, options)
                return None
            return self.agrees(expected, operands, options)

    def raises(self, error: Exception, operands: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """The same class of error comes from the plan."""
        kind = next(kind for kind in _ERRORS if isinstance(error, kind))
        with pytest.raises(kind):
            plan(self.op, tuple(map(meta_of, operands)), options)

    def agrees(self, expected: np.ndarray, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Plan:
        """The plan tells the truth, and every way to run the kernel gives what is expected."""
        found = plan(self.op, tuple(map(meta_of, operands)), options)
        self.promises(found, expected)
        if all(a.flags.c_contiguous for a in operands if isinstance(a, np.ndarray)) and self.op.name not in _RETICENT:
            assert found.meta.contiguous == expected.flags.c_contiguous
        kernel = resolve(self.op, np)
        got = kernel(*operands, **options)
        assert_same(got, expected)
        self.owns(found, np.asarray(got), expected, operands)
        if self.op.out and all(a.flags.c_contiguous for a in operands if isinstance(a, np.ndarray)):
            self.writes_out(found.meta, expected, operands, options)
        return found

    def promises(self, found: Plan, expected: np.ndarray) -> None:
        shape, bound = found.meta.shape, found.meta.bound
        assert found.meta.dtype == expected.dtype
        assert len(shape) == expected.ndim
        for length, most, actual in zip(shape, bound, expected.shape, strict=True):
            assert length == actual if length is not None else actual <= most
        if found.meta.contiguous:
            assert expected.flags.c_contiguous
        if found.meta.known:
            assert found.meta.nbytes == expected.nbytes
        assert found.workspace >= 0

    def owns(self, found: Plan, got: np.ndarray, expected: np.ndarray, operands: tuple[Any, ...]) -> None:
        shared, there = [
            any(owner(a) is owner(result) for a in operands if isinstance(a, np.ndarray)) for result in (got, expected)
        ]
        if found.nbytes == 0 and got.size:
            assert self.op.view
            assert shared
        elif not self.op.view and got.size:
            assert not shared or there  # as of integers that NumPy before 2.4 rounds
            assert found.nbytes >= got.nbytes
            assert found.nbytes == got.nbytes or not found.meta.known

    def writes_out(self, result: Meta, expected: np.ndarray, operands: Any, options: Mapping[str, Any]) -> None:
        kernel = resolve(self.op, np)
        out = np.empty(result.bound, result.dtype)
        out.view(np.uint8).fill(0xA5) if out.ndim and out.size else None
        returned = kernel(*operands, out=out, **options)
        assert returned is out
        assert out.tobytes() == expected.tobytes()
        if expected.size:
            assert expected.flags.c_contiguous
        for place in self.places(operands, expected):
            fresh = [a.copy() if isinstance(a, np.ndarray) else a for a in operands]
            assert kernel(*fresh, out=fresh[place], **options) is fresh[place]
            assert fresh[place].tobytes() == expected.tobytes()

    def places(self, operands: tuple[Any, ...], expected: np.ndarray) -> list[int]:
        """Which operands the result may be written over: any of a ufunc, else the first."""
        if not self.op.inplace or (expected.dtype.kind == "c" and expected.size == 1):
            return []
        considered = operands if isinstance(resolve(self.op, np), np.ufunc) else operands[:1]
        return [
            place
            for place, a in enumerate(considered)
            if isinstance(a, np.ndarray) and a.shape == expected.shape and a.dtype == expected.dtype
        ]


@pytest.fixture
def check() -> type[Check]:
    """`check(name)(eager, *operands, **options)`."""
    return Check


def values(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Reproducible values, small enough for every dtype."""
    return _values(shape, dtype, seed).copy()


@functools.cache
def _values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind in "fc":
        real = rng.standard_normal(shape)
        return np.asarray(real + 1j * rng.standard_normal(shape) if kind == "c" else real).astype(dtype)
    return np.asarray(rng.integers(0, 2 if kind == "b" else 6, shape)).astype(dtype)


def layouts(dtype: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays of one dtype in many layouts and shapes."""
    make = values
    return {
        "c": make((3, 4), dtype, seed),
        "fortran": np.asfortranarray(make((3, 4), dtype, seed)),
        "columns": make((3, 8), dtype, seed)[:, ::2],
        "backwards": make((3, 4), dtype, seed)[::-1],
        "row": make((4,), dtype, seed),
        "strided row": make((8,), dtype, seed)[::2],
        "new axis": make((4,), dtype, seed)[None],
        "column": make((3, 1), dtype, seed),
        "no axis": make((), dtype, seed),
        "empty": make((0, 4), dtype, seed),
        "nothing wide": make((3, 0), dtype, seed),
        "cube": make((2, 3, 4), dtype, seed),
        "turned cube": make((4, 2, 3), dtype, seed).transpose(1, 2, 0),
        "broadcast": np.broadcast_to(make((4,), dtype, seed), (3, 4)),
    }


LAYOUTS = tuple(layouts("f8"))


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    """One of the dtypes."""
    return str(request.param)


@pytest.fixture(params=DTYPES[::3] + DTYPES[5:7])
def some_dtype(request: pytest.FixtureRequest) -> str:
    """A few of the dtypes, to go with every layout."""
    return str(request.param)


def another_thread_runs_during(work: Callable[[], object]) -> bool:
    """Whether another thread ever runs while this work does, which nobody asks to let go of the interpreter's lock."""

    def found_in_between() -> bool:
        began, ended = threading.Lock(), []
        began.acquire()

        def run() -> None:
            began.release()
            work()
            ended.append(True)

        thread = threading.Thread(target=run)
        thread.start()
        began.acquire()
        between = not ended
        thread.join()
        return between

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        return any(found_in_between() for _ in range(200))
    finally:
        sys.setswitchinterval(interval)


def in_one_item(**cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, of all combinations, but in one item: each costs milliseconds."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**given: Any) -> None:
            applied = 0
            for values in itertools.product(*cases.values()):
                case = dict(zip(cases, values, strict=True))
                try:
                    test(**given, **case)
                    applied += 1
                except pytest.skip.Exception as skipped:
                    reason = skipped.msg
                except BaseException as error:
                    error.add_note(f"in the case {case!r}")
                    raise
            if not applied:
                pytest.skip(reason)

        fixtures = [name for name in inspect.signature(test).parameters if name not in cases]
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in fixtures]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


in_every_dtype = in_one_item(dtype=DTYPES)


def in_every_layout(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with each `layout`, or with `x` of `some_dtype` in each."""
    names = inspect.signature(test).parameters.keys()
    if "x" not in names:
        return in_one_item(layout=LAYOUTS)(test)

    @functools.wraps(test)
    def of_layout(layout: str, some_dtype: str, **given: Any) -> None:
        more = {"some_dtype": some_dtype, "layout": layout}
        test(x=layouts(some_dtype)[layout], **given, **{name: more[name] for name in more if name in names})

    parameters = dict.fromkeys([*names, "some_dtype", "layout"])
    del parameters["x"]
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in parameters]
    of_layout.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return in_one_item(layout=LAYOUTS)(of_layout)

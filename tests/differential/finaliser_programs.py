"""Random programs whose finalisers do everything: submit, cancel, assign, keep, read, drop, close, raise.

Each step is taken on a scheduler and on shadows (see `shadow`), so whatever a handle gives is known whenever it is
asked. What finalisers belong to: objects in dead cycles and out of them, results of functions and their arguments,
arrays that are watched by weak references, generators and asynchronous ones that are left. When they run depends on
threads and on the collector, so a seed says what a program does, and not in which order all of it happens.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np

import asyncsched as asc

from .programs import OPS, Array, Boom
from .shadow import MAYBE, SURELY, Shadow, Version, Watch, derived

SHAPES = [(1, 2), (3, 4), (4, 4), (33, 20), (4,), (100, 90)]  # of the last, buffers are recycled
MOST_BYTES = 300_000  # of one array
MOST_HELD = 24  # shadows
MOST_ACTS = 150  # of finalisers, for one program: each may make others
DEEP = 3  # finalisers that run inside of each other
# Those that take any array, do not warn, and are one operation: between two, a finaliser may assign to what both read.
UNARY = ("add1", "scale", "npscalar", "square", "abs", "exp", "transpose", "flip", "slice", "row", "newaxis", "ravel",
         "broadcast", "sum", "tanh")  # fmt: skip
BINARY = ("add", "mul", "maximum", "less", "matmul", "concat", "stack")


class Deliberate(Exception):
    """What finalisers raise, which Python tells `sys.unraisablehook` and nobody else."""


class Leave(Exception):
    """What the scheduler's block is left by."""


class Wrong(AssertionError):
    """What a program must not see."""


class Pressure:
    """What is scarce while the scheduler is called, and not while the program keeps its own books.

    Attributes:
        errors: what a call may raise for it, and a task fail by.
        spared: operations in which NumPy does not bear it.
        shapes: more of them for arrays.
        cause: the word for it in the message of a scheduler that closed itself.
    """

    errors: tuple[type[BaseException], ...] = ()
    spared: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    cause = "nothing of the kind"

    def tight(self) -> AbstractContextManager[Any]:
        """For a call of the scheduler's."""
        return nullcontext()

    def waiting(self) -> AbstractContextManager[Any]:
        """For an `await`, while which streams and the loop go on."""
        return nullcontext()

    def relaxed(self) -> AbstractContextManager[Any]:
        """For a finaliser, which may run inside of such a call."""
        return nullcontext()


class Noisy:
    """An object that acts when it dies, and holds things until then; in a cycle or not."""

    def __init__(self, act: Callable[[list[Any]], None], things: list[Any], *, cycle: bool) -> None:
        self.act, self.things = act, things
        self.me = self if cycle else None

    def __del__(self) -> None:
        self.act(self.things)


class Program:
    """One program on one scheduler."""

    deadly = True  # tensors are held by what dies, too

    def __init__(self, s: asc.Scheduler, seed: int, pressure: Pressure, *, closes: bool) -> None:
        self.s, self.pressure, self.closes = s, pressure, closes
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.thread, self.loop = threading.get_ident(), asyncio.get_running_loop()
        self.shadows: list[Shadow] = []
        self.arrays: list[tuple[Array, bytes]] = []  # that were awaited
        self.cells: list[Any] = []  # Noisy objects, weak references, generators
        self.made: list[Version] = []
        self.excused: Counter[str] = Counter()  # what there was a reason for
        self.wrong: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.gates: list[threading.Event] = []
        self.acts = self.depth = self.checked = 0
        self.cancels = 0  # under way: what they have cancelled is not noted yet
        self.closing = self.leaving = self.over = False

    # -- the program's own steps --------------------------------------------------------------------------------

    async def run(self, steps: int) -> None:
        """Take steps; then look at all that is left."""
        names = [name for name, weight in STEPS.items() for _ in range(weight)]
        for _ in range(3):
            await self.guarded(self._put)
        for _ in range(steps):
            if self.leaving:
                raise Leave
            if len(self.shadows) > MOST_HELD:
                del self.shadows[: MOST_HELD // 2]
            await self.guarded(self._step(self.rng.choice(names)))
            if self.closing and self.rng.random() < 0.3:
                break
        await self.look_at_all()

    def _step(self, name: str) -> Callable[[], Any]:
        method = getattr(self, name)
        return method if name.startswith("_") else lambda: method(self.rng)

    async def guarded(self, step: Callable[[], Any]) -> None:
        """Take a step, which may be refused for a reason that is known."""
        try:
            done = step()
            if isinstance(done, Awaitable):
                await done
        except BaseException as error:
            if not self.allowed(error):
                raise

    def allowed(self, error: BaseException) -> bool:
        """Whether there is a reason for it."""
        if isinstance(error, BaseExceptionGroup):
            return all(self.allowed(one) for one in error.exceptions)
        self.excused[type(error).__name__] += 1
        if isinstance(error, asc.SchedulerClosed):
            return self.closing or self.pressure.cause in str(error) or str(error).startswith("scope ")
        if isinstance(error, asc.TaskCancelled):
            return self.closing
        return isinstance(error, (Boom, asc.QueueFull, *self.pressure.errors))

    async def look_at_all(self) -> None:
        """Await and compare all that is held."""
        self.open_gates()
        while found := _take(self.shadows, self.rng):
            await self.guarded(lambda: self._check(found.pop()))
        for array, expected in self.arrays:
            if array.tobytes() != expected:
                raise Wrong("an array that was awaited has changed")
        self.arrays.clear()

    async def let_go(self) -> None:
        """Drop everything. Finalisers that run by that do nothing more."""
        self.over = True
        self.open_gates()
        for task in self.tasks:  # of closing
            try:
                await task
            except BaseException as error:
                if not self.allowed(error):
                    raise
        for _ in range(3):
            for kept in (self.shadows, self.arrays, self.cells, self.tasks, self.made):
                kept.clear()
            gc.collect()
            await asyncio.sleep(0)

    def open_gates(self) -> None:
        """Have the functions that are held go on."""
        for gate in self.gates:
            gate.set()
        self.gates.clear()

    # -- steps that finalisers take, too ------------------------------------------------------------------------

    def operate(self, rng: random.Random, *own: Shadow) -> None:
        """An operator, or a view."""
        binary = rng.random() < 0.4
        name = rng.choice(BINARY if binary else UNARY)
        if name in self.pressure.spared:
            return
        operands = (*own, *self._pick(rng, 2))[: 1 + binary]
        count, eager, ours = OPS[name]
        if len(operands) != count or not _fits(eager, operands):
            return
        self._issue(lambda *handles: ours(*handles), eager, operands)

    def inplace(self, rng: random.Random, *own: Shadow) -> None:
        """`x += 1`: the old handle is gone."""
        (x,) = own[:1] or self._pick(rng, 1) or (None,)
        if x is None or x.example.dtype == bool:
            return
        self._issue(lambda handle: handle.__add__(1), lambda a: a + 1, [x])
        with suppress(ValueError):  # dropped meanwhile, or not the program's
            self.shadows.remove(x)

    def function(self, rng: random.Random, *own: Shadow) -> None:
        """A function, whose arguments and result may have finalisers."""
        (x,) = own[:1] or self._pick(rng, 1) or (None,)
        if x is not None:
            call, eager, options, failed = self._function(rng, x)
            args = self._noisy_argument(rng)
            self._issue(lambda h: self.s.submit_nowait(call, h, *args, **options), eager, [x], failed=failed)

    def _function(self, rng: random.Random, x: Shadow) -> tuple[Any, Any, dict[str, Any], bool]:
        declared = {"shape": x.example.shape, "dtype": x.example.dtype}
        kind, act = rng.randrange(4), self.act_of(rng)
        if kind == 0:
            return _double, _double, declared, False
        if kind == 1:
            return _boom, lambda a: a, declared, True

        def watched(a: Array, *noisy: object) -> Array:  # a finaliser is told of the end of its result
            result = _double(a)
            weakref.finalize(result, act, []).atexit = False
            return result

        return watched, _double, declared, False

    def _noisy_argument(self, rng: random.Random) -> list[Any]:
        return [self._noisy(rng)] if rng.random() < 0.4 and self.acts < MOST_ACTS else []

    def assign(self, rng: random.Random, *own: Shadow) -> None:
        """`x[i] = v`: the handle moves to a new version."""
        (x,) = own[:1] or self._pick(rng, 1) or (None,)
        if x is None or not x.example.ndim or not x.example.size:
            return
        key = rng.randrange(x.example.shape[0])
        number = rng.randrange(2) if x.example.dtype == bool else rng.randrange(100)

        def made(version: Version) -> Version:
            array = version.array.copy(order="K")
            array[key] = number
            new = Version(array, [version])
            self.made.append(new)
            if self.leaving or self.closing:
                new.cancel(MAYBE)
            return new

        name, ended = x.begin(made), False
        try:
            with self.pressure.tight():
                x.handle[key] = number
            ended = True
        finally:
            told = True if ended else None if isinstance(sys.exc_info()[1], self.pressure.errors) else False
            x.end(name, told)
            x.look()

    def cancel(self, rng: random.Random, *own: Shadow) -> None:
        """Cancel a task, and what depends on it."""
        (x,) = own[:1] or self._pick(rng, 1) or (None,)
        if x is None:
            return
        told = None
        self.cancels += 1
        with Watch([x]) as (seen,):
            try:
                with self.pressure.tight():
                    told = x.handle.cancel()
            except self.pressure.errors:
                pass
        if told is not False:
            for version in seen:
                version.cancel(SURELY if told and len(seen) == 1 else MAYBE)
        self.cancels -= 1

    def read(self, rng: random.Random, *own: Shadow) -> None:
        """Read what is done."""
        for x in own or self._pick(rng, 1):
            with Watch([x]) as (seen,), self.pressure.tight():
                if not x.handle.done():
                    return
                error = value = None
                try:
                    value = x.handle.result()
                except BaseException as raised:
                    error = raised
            try:
                self._judge(x, seen, value, error)
            finally:
                del error

    def statistics(self, rng: random.Random, *own: Shadow) -> None:
        """Ask."""
        with self.pressure.tight():
            self.s.statistics()

    def drop(self, rng: random.Random, *own: Shadow) -> None:
        """Drop some, and perhaps collect."""
        for kept in (self.shadows, self.cells, self.arrays):
            if rng.random() < 0.5:
                _take(kept, rng)
        if rng.random() < 0.2:
            gc.collect()

    def keep(self, rng: random.Random, *own: Shadow) -> None:
        """What was to die lives on."""
        self.shadows += own

    def close(self, rng: random.Random, *own: Shadow) -> None:
        """Have the scheduler closed soon, or its block left."""
        if not self.closes or self.closing:
            return
        self.closing = True
        self.open_gates()
        if rng.random() < 0.5:
            self.tasks.append(self.loop.create_task(self.s.aclose()))
        else:
            self.leaving = True
            self._cancelled_since(0)

    # -- finalisers ---------------------------------------------------------------------------------------------

    def act_of(self, rng: random.Random) -> Callable[[list[Any]], None]:
        """What one finaliser does with what its object holds. On the loop's thread once at most, elsewhere too."""
        seed = rng.randrange(2**32)
        return lambda things: self.act(random.Random(seed), things)

    def act(self, rng: random.Random, things: Sequence[Any]) -> None:
        """A finaliser."""
        if self.over or self.acts >= MOST_ACTS or self.depth >= DEEP:
            return
        with self.pressure.relaxed():
            here = threading.get_ident() == self.thread
            self.acts += 1
            self.depth += here
            try:
                shadows = [thing for thing in things if isinstance(thing, Shadow)]
                if here:
                    for name in rng.choices(ACTS, k=rng.choice([1, 1, 2, 3])):
                        getattr(self, name)(rng, *(shadows if rng.random() < 0.7 else ()))
                else:
                    self._act_elsewhere(rng, shadows)
                self.arrays += [thing for thing in things if isinstance(thing, tuple)]
            except BaseException as error:
                if not self.allowed(error):
                    self.wrong.append(f"in a finaliser: {where(error)}")
            finally:
                self.depth -= here
        if rng.random() < 0.15:
            raise Deliberate

    def _act_elsewhere(self, rng: random.Random, shadows: list[Shadow]) -> None:
        """On a stream's thread, where nothing may be submitted: who tries is told so."""
        if rng.random() < 0.5:
            self.shadows += shadows
            return
        for x in shadows:
            try:
                _ = x.handle + 1
            except asc.SchedulerClosed:
                pass
            except RuntimeError as error:
                if "thread" not in str(error):
                    raise
            else:
                raise Wrong("an operation was taken on a stream's thread")

    def _noisy(self, rng: random.Random) -> Noisy:
        """Takes some of what the program holds with it."""
        things: list[Any] = []
        for _ in range(rng.randrange(3) if self.deadly else 0):
            if len(self.shadows) > 2:
                things += _take(self.shadows, rng)
        if rng.random() < 0.5:
            things += _take(self.arrays, rng)
        noisy = Noisy(self.act_of(rng), things, cycle=rng.random() < 0.6)
        if rng.random() < 0.3:
            noisy.things.append(Noisy(self.act_of(rng), things, cycle=True))
        return noisy

    def _dies(self) -> None:
        """Something with a finaliser, which dies now or when it is found."""
        rng = self.rng
        noisy: list[Any] = [self._noisy(rng)]
        if rng.random() < 0.3:
            self.cells += noisy  # dropped later
        elif rng.random() < 0.3:
            act = self.act_of(rng)
            self.cells.append(weakref.ref(noisy[0], lambda _: act([])))

    def _generator_is_left(self) -> None:
        def generator(act: Callable[[list[Any]], None], things: list[Any]) -> Iterator[int]:
            try:
                yield 1
            finally:
                act(things)

        things = self._noisy(self.rng).things
        left = generator(self.act_of(self.rng), things)
        next(left)
        if self.rng.random() < 0.5:
            things.append(left)  # a cycle

    async def _async_generator_is_left(self) -> None:
        async def generator(act: Callable[[list[Any]], None], things: list[Any]) -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                await asyncio.sleep(0)
                with suppress(Deliberate):
                    act(things)

        async for _ in generator(self.act_of(self.rng), self._noisy(self.rng).things):
            break

    # -- the other steps ----------------------------------------------------------------------------------------

    async def _put(self) -> None:
        rng, shape = self.rng, self.rng.choice((*SHAPES, *self.pressure.shapes))
        array = (self.numbers.standard_normal(shape) * 4).astype(rng.choice(("float64", "float32", "int64", "bool")))
        version = Version(array.copy(order="K"))
        if rng.random() < 0.3:
            with self.pressure.tight():
                handle = self.s.put_nowait(array)
        else:
            with self.pressure.waiting():
                handle = await self.s.put(array)
        self._add(handle, [version])

    async def _submit(self) -> None:
        found = self._pick(self.rng, 1)
        for x in found:
            call, eager, options, failed = self._function(self.rng, x)
            args = self._noisy_argument(self.rng)
            with Watch(found) as seen, self.pressure.waiting():
                handle = await self.s.submit(call, x.handle, *args, **options)
            self._add(handle, derived(eager, seen, failed=failed))

    def _task(self) -> None:
        """A function whose result acts when its handle is dropped."""
        noisy, args = [self._noisy(self.rng)], self._noisy_argument(self.rng)
        self.cells.append(self.s.submit_nowait(lambda *_: noisy.pop(), *args))

    def _hold(self) -> None:
        """A function that holds its stream, so that all behind it is pending for a while."""
        gate = threading.Event()
        if not self.closing:
            self.gates.append(gate)
            self.loop.call_later(0.004, gate.set)
            self.s.submit_nowait(_held, gate)

    async def _await(self) -> None:
        for x in self._pick(self.rng, 1):
            await self._check(x, keep=True)

    async def _gather(self) -> None:
        found = self._pick(self.rng, 3)
        with Watch(found) as seen:
            waiting = asc.gather(*[x.handle for x in found])  # it takes the versions of now
        value, error = await _outcome(waiting)
        try:
            if error is None:
                for x, versions, one in zip(found, seen, value, strict=True):
                    self._judge(x, versions, one, None)
            elif found:
                self._judge(found[0], [version for versions in seen for version in versions], None, error)
        finally:
            del error

    async def _barrier(self) -> None:
        self.open_gates()
        with self.pressure.waiting():
            await self.s.barrier()

    async def _window(self) -> None:
        window = self.s.window(1)
        for _ in range(3):
            async with window:
                for _ in range(3):
                    self.operate(self.rng)

    async def _scope(self) -> None:
        reserve, before = self.rng.choice([None, None, 64 * MOST_BYTES]), len(self.made)
        leaves = self.rng.random() < 0.3
        self.cancels += leaves
        try:
            async with self.s.scope(name="inner", reserve=reserve):
                try:
                    for _ in range(4):
                        self.operate(self.rng)
                        self.function(self.rng)
                        self._dies()
                    if leaves:
                        raise Leave
                except BaseException:
                    self._cancelled_since(before)
                    raise
        except BaseException as error:
            self._cancelled_since(before)  # also what finalisers made meanwhile
            if not isinstance(error, Leave):
                raise
        finally:
            self.cancels -= leaves

    def _cancelled_since(self, before: int) -> None:
        for version in self.made[before:]:
            version.cancel(MAYBE)

    def _turn(self) -> Awaitable[None]:
        return asyncio.sleep(0)

    def _collect(self) -> None:
        gc.collect()

    # -- what all of them use -----------------------------------------------------------------------------------

    def _pick(self, rng: random.Random, count: int) -> list[Shadow]:
        held = list(self.shadows)
        return [rng.choice(held) for _ in range(count)] if held else []

    def _issue(
        self, ours: Callable[..., Any], eager: Callable[..., Any], operands: Sequence[Shadow], *, failed: bool = False
    ) -> None:
        """Issue an operation on handles, and on their shadows."""
        with Watch(operands) as seen:
            handles = [operand.handle for operand in operands]
            with self.pressure.tight():
                handle = ours(*handles)
        self._add(handle, derived(eager, seen, failed=failed))

    def _add(self, handle: Any, versions: list[Version]) -> None:
        if self.leaving or self.closing:
            for version in versions:
                version.cancel(MAYBE)
        self.made += versions
        shadow = Shadow(handle, versions)
        shadow.look()
        self.shadows.append(shadow)

    async def _check(self, x: Shadow, *, keep: bool = False) -> None:
        """Await a handle and compare."""
        with Watch([x]) as (seen,), self.pressure.waiting():
            value, error = await _outcome(x.handle)
        try:
            self._judge(x, seen, value, error)
        finally:
            del error
        if keep and value is not None and self.rng.random() < 0.5:
            self.arrays.append((value, value.tobytes()))

    def _judge(self, x: Shadow, seen: list[Version], value: Any, error: BaseException | None) -> None:
        """Whether one of the versions that it may have had ends so."""
        self.checked += 1
        if x.lost or isinstance(error, self.pressure.errors):
            self.excused["lost count of versions" if x.lost else type(error).__name__] += 1
            return
        if error is None:
            if any(v.equals(value) and not v.failed and v.gone is not SURELY for v in seen):
                return
            told = "it gives other numbers than NumPy"
        elif isinstance(error, asc.TaskCancelled):
            if self.cancels or any(version.gone for version in seen):
                return
            told = f"nobody cancelled it: {error}"
        elif isinstance(error, Boom):
            if any(version.failed for version in seen):
                return
            told = "it failed"
        elif isinstance(error, asc.SchedulerClosed) and self.allowed(error):
            return
        else:
            told = f"it raised {error!r}"
        ends = [(v.array.tolist() if v.array.size < 20 else "...", v.failed, v.gone) for v in seen]
        shown = value.tolist() if isinstance(value, np.ndarray) and value.size < 20 else value
        raise Wrong(f"{x.handle!r}: {told}; {shown} of {ends}") from error


def _take(kept: list[Any], rng: random.Random) -> list[Any]:
    """Take one out; none if none is left, which finalisers change at any time."""
    try:
        return [kept.pop(rng.randrange(len(kept)))]
    except (IndexError, ValueError):
        return []


def where(error: BaseException | None) -> str:
    """An exception and its way, without a look at files, which would block."""
    if error is None:
        return "nothing"
    frames = traceback.walk_tb(error.__traceback__)
    way = [f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}" for frame, line in frames]
    return "\n  ".join([repr(error), *way, *getattr(error, "__notes__", ())])


def _double(a: Array, *noisy: object) -> Array:
    return np.asarray(a * a.dtype.type(2))  # of an array without axes NumPy makes a number


def _boom(a: Array, *noisy: object) -> Array:
    raise Boom


def _held(gate: threading.Event) -> None:
    assert gate.wait(60)


async def _outcome(waiting: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    try:
        return await waiting, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def _fits(eager: Callable[..., Any], operands: Sequence[Shadow]) -> bool:
    """Whether NumPy does it, with a result that is not too large."""
    try:
        return np.asarray(eager(*[operand.example for operand in operands])).nbytes <= MOST_BYTES
    except (ValueError, TypeError, IndexError):
        return False


STEPS = {  # how often, each; the first of these are for coroutines, the others for finalisers, too
    "_put": 3, "_submit": 3, "_task": 3, "_hold": 2, "_await": 4, "_gather": 2, "_barrier": 1, "_window": 1,
    "_scope": 1, "_turn": 2, "_collect": 1, "_dies": 10, "_generator_is_left": 3, "_async_generator_is_left": 1,
    "operate": 12, "inplace": 3, "function": 3, "assign": 6, "cancel": 1, "read": 2, "drop": 4, "statistics": 1,
}  # fmt: skip
ACTS = (
    *("operate",) * 4, *("function",) * 2, *("assign",) * 3, *("keep",) * 3, "inplace", "cancel", "read", "drop",
    "statistics", "close",
)  # fmt: skip

"""Arguments out of their range are refused where they are given, by name, whoever takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
import asyncsched.flow.pipeline  # imported where no loop runs, since that reads files
from asyncsched._arguments import check_int, check_number, format_bytes, format_seconds, parse_bytes
from asyncsched.serving import Serving


async def waits(*_: Any) -> int:
    return 1


def yields(*_: Any) -> Iterator[int]:
    yield 1


async def streams(*_: Any) -> AsyncIterator[int]:
    yield 1


class Waits:
    async def __call__(self, *_: Any) -> int:
        return 1


async def app(*_: Any) -> None: ...


def instrument(method: Any) -> asc.observe.Instrument:
    return type("Mine", (asc.observe.Instrument,), {"task_ended": method})()


PLAIN: dict[str, Callable[[asc.Scheduler, Any], Any]] = {
    "tenant": lambda s, fn: Serving(app, tenant=fn),
    "deadline": lambda s, fn: Serving(app, deadline=fn),
    "reserve": lambda s, fn: Serving(app, reserve=fn),
    "instruments of requests": lambda s, fn: Serving(app, instruments=[fn]),
    "cost of a batcher": lambda s, fn: asc.Batcher(list, cost=fn),
    "cost of a stepper": lambda s, fn: asc.Stepper(list, cost=fn),
    "reserve of a stepper": lambda s, fn: asc.Stepper(list, reserve=fn),
    "order": lambda s, fn: s.pipeline([1], order=fn),
    "collate": lambda s, fn: s.pipeline([1]).batch(1, collate=fn),
    "a rate": lambda s, fn: asc.optim.schedules.LambdaLR(asc.optim.SGD([asc.nn.Linear(1, 1).weight], lr=1.0), fn),
    "apply": lambda s, fn: asc.nn.Linear(1, 1).apply(fn),
}


@pytest.mark.parametrize(
    "fn", [waits, yields, streams, Waits(), partial(waits, 1), partial(Waits(), 1)], ids=lambda fn: type(fn).__name__
)
@pytest.mark.parametrize("what", PLAIN)
async def test_a_callback_that_gives_no_value_at_once_is_refused_when_it_is_given(
    s: asc.Scheduler, what: str, fn: Any
) -> None:
    with pytest.raises(TypeError, match="must be a plain function"):
        PLAIN[what](s, fn)


async def test_methods_of_an_instrument_that_would_never_run_are_refused(s: asc.Scheduler) -> None:
    for method in (waits, yields, streams):
        with pytest.raises(TypeError, match="the method task_ended of an instrument must be a plain function"):
            s.add_instrument(instrument(method))


async def test_a_filter_that_yields_would_keep_everything(s: asc.Scheduler) -> None:
    for fn in (yields, streams):
        with pytest.raises(TypeError, match="the function of filter must be a plain function"):
            s.pipeline([1]).filter(fn)
    async with s.pipeline([1]).filter(waits).open() as items:  # which may wait
        assert [item async for item in items] == [1]


async def test_a_coroutine_is_no_tenant(s: asc.Scheduler) -> None:
    for tenant in (waits(), yields(), streams()):
        with pytest.raises(TypeError, match="tenant= got a coroutine or a generator"):
            s.scope(tenant=tenant)


def scheduler() -> asc.Scheduler:
    return asc.Scheduler("cpu")


@pytest.mark.parametrize("value", [1, 2.5, np.float32(3), np.int64(4)])
def test_numbers_of_any_type(value: Any) -> None:
    found = check_number("x", value)
    assert found == value
    assert type(found) in (int, float)


def test_none_and_zero_where_they_mean_something() -> None:
    check_number("x", None, none="never")
    check_number("x", 0.0, zero=True)
    check_int("n", None, none="no bound")
    check_int("n", 0, 0)


@pytest.mark.parametrize("text", ["1 B", "1023 B", "1.0 KiB", "1.5 MiB", "64.0 GiB", "2.0 TiB", "2048.0 TiB"])
def test_sizes_are_written_as_they_are_read(text: str) -> None:
    assert format_bytes(parse_bytes(text)) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (2**20 - 1, "1.0 MiB"),
        (2**40 - 1, "1.0 TiB"),
        (2**20 - 2**10, "1023.0 KiB"),
        (-5 * 2**30, "-5.0 GiB"),
    ],
)
def test_a_number_rounded_to_a_unit_has_that_unit(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1234, "1,234 s"),
        (1, "1 s"),
        (0.0123456, "12.3 ms"),
        (9.997e-4, "1 ms"),
        (0.99949, "999 ms"),
        (-1.5, "-1.5 s"),
        (4.21e-5, "42.1 us"),
        (0, "0 us"),
    ],
)
def test_durations_have_a_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_size_may_be_numpys() -> None:
    """As a product of a shape is."""
    size = parse_bytes(np.prod((3, 4)) * np.float64().itemsize)
    assert (size, type(size)) == (96, int)


@pytest.mark.parametrize("shape", [2.0, True, (2, -1), (2.0,), "3", (None,)])
async def test_shapes_that_make_no_sense(s: asc.Scheduler, shape: Any) -> None:
    with pytest.raises(ValueError, match="must be a tuple of lengths, none negative"):
        s.submit_nowait(np.ones, 3, shape=shape, dtype=float)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: asc.Scheduler("cpu", max_ops=0),
            ValueError,
            "max_ops must be at least 1, not 0: use None for no bound",
        ),
        (lambda: asc.Scheduler("cpu", streams=True), TypeError, "streams must be an int or None, not bool"),
        (lambda: asc.Scheduler("cpu", stall_timeout=inf), ValueError, "not inf: use None for never"),
        (lambda: scheduler().window(0), ValueError, "the depth of a window must be at least 1, not 0"),
        (lambda: scheduler().window(1.5), TypeError, "the depth of a window must be an int, not float"),
        (
            lambda: scheduler().scope(deadline=0),
            ValueError,
            "deadline must be a finite number of seconds above 0, not 0",
        ),
        (lambda: scheduler().scope(deadline="1"), TypeError, "deadline must be a number of seconds or None, not str"),
        (
            lambda: scheduler().scope(weight=nan),
            ValueError,
            "weight must be a finite number of shares above 0, not nan",
        ),
        (
            lambda: asc.Scheduler("cpu", max_bytes=0),
            ValueError,
            "max_bytes must be positive, not 0: use None for no bound",
        ),
        (lambda: asc.Batcher(list, max_batch_cost="8"), TypeError, "max_batch_cost must be a number, not str"),
        (
            lambda: asc.Batcher(list, max_queue=0),
            ValueError,
            "max_queue must be at least 1, not 0: use None for no bound",
        ),
        (lambda: asc.Batcher(list, concurrency=1.5), TypeError, "concurrency must be an int, not float"),
        (
            lambda: Serving(None, drain_timeout=None),
            TypeError,
            "drain_timeout must be a number of seconds, not NoneType",
        ),
        (lambda: Serving(None, body_timeout=0), ValueError, "not 0: use None for no bound"),
        (lambda: Serving(None, max_requests_per_tenant=0), ValueError, "max_requests_per_tenant must be at least 1"),
    ],
)
def test_an_argument_out_of_range_is_refused_by_name(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)


def test_a_reserve_of_nothing_is_refused_without_talk_of_bounds() -> None:
    with pytest.raises(ValueError, match="reserve must be positive, not 0$"):
        asc.Stepper(list, reserve=0)

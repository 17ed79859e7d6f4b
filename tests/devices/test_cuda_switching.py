"""How long threads wait for the interpreter, which is the process's setting: it is shortened, and put back."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import asyncsched as asc
from asyncsched.devices.cuda.device import SWITCH_SECONDS, CUDADevice
from tests.fake_cupy import Fake

from .conftest import ended

pytestmark = pytest.mark.one_loop
BEFORE = 0.004


@pytest.fixture(autouse=True)
def before() -> Iterator[None]:
    own = sys.getswitchinterval()
    sys.setswitchinterval(BEFORE)
    yield
    sys.setswitchinterval(own)


async def test_it_is_put_back_by_the_last(fake: Fake) -> None:
    async with asc.Scheduler("cuda"):
        assert sys.getswitchinterval() == SWITCH_SECONDS
        async with asc.Scheduler(CUDADevice(0, 1, switch_interval=1e-4)):
            assert sys.getswitchinterval() == pytest.approx(1e-4)
        assert sys.getswitchinterval() == SWITCH_SECONDS
    assert sys.getswitchinterval() == BEFORE
    await ended()


async def test_a_shorter_one_of_somebody_else_stays(fake: Fake) -> None:
    sys.setswitchinterval(1e-4)
    shorter = sys.getswitchinterval()  # 99 us
    async with asc.Scheduler("cuda"):
        assert sys.getswitchinterval() == shorter
    assert sys.getswitchinterval() == shorter
    await ended()


async def test_what_somebody_sets_meanwhile_stays(fake: Fake) -> None:
    async with asc.Scheduler("cuda"):
        sys.setswitchinterval(0.003)
    assert sys.getswitchinterval() == 0.003
    await ended()


async def test_none_leaves_it_as_it_is(fake: Fake) -> None:
    async with asc.Scheduler(CUDADevice(0, 1, switch_interval=None)):
        assert sys.getswitchinterval() == BEFORE
    await ended()


async def test_it_is_put_back_where_the_scheduler_fails_and_is_closed_twice(fake: Fake) -> None:
    s = asc.Scheduler("cuda")
    with pytest.raises(ZeroDivisionError):
        async with s:
            1 / 0  # noqa: B018
    await s.aclose()
    assert sys.getswitchinterval() == BEFORE
    await ended()


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), "5 ms", True])
def test_bad_input_is_refused_where_it_is_written(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError), match="switch_interval"):
        CUDADevice(switch_interval=wrong)  # type: ignore[arg-type]

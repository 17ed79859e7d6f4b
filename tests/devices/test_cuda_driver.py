"""The driver, called before CuPy does: by `ctypes`, which lets other threads go on."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.devices.cuda import driver, memory, requirements
from tests.fake_cupy import Fake

from .conftest import BLOCK, opened

pytestmark = pytest.mark.one_loop


class Library:
    """A driver in which some functions fail, and others are not there."""

    def __init__(self, **statuses: int) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._statuses = statuses

    def __getattr__(self, name: str) -> Any:
        if name not in self._statuses:
            raise AttributeError(name)

        def function(*args: Any) -> int:
            self.calls.append((name, args))
            if name == "cuDeviceGet":
                args[0]._obj.value = 40 + args[1]
            return self._statuses[name]

        return function


WORKS = {"cuInit": 0, "cuDeviceGet": 0, "cuDevicePrimaryCtxRetain": 0, "cuThreadExchangeStreamCaptureMode": 0}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    def load(**statuses: int) -> Library:
        library = Library(**statuses)
        monkeypatch.setattr(driver, "_library", lambda kind: library)
        return library

    return load


async def test_opening_makes_the_context_first(fake: Fake, load: Any) -> None:
    library = load(**WORKS)
    async with opened(1):
        pass
    names = [name for name, _ in library.calls]
    assert names[:3] == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    assert library.calls[2][1][1].value == 40


async def test_the_driver_is_asked_for_free_memory(fake: Fake, load: Any) -> None:
    """CuPy's own call holds the GIL while it waits for the driver."""
    async with opened(1) as s:
        context = s.devices[0].context  # type: ignore[attr-defined]
        cupys = context.free_bytes()
        library = load(cuCtxPushCurrent_v2=0, cuMemGetInfo_v2=0, cuCtxPopCurrent_v2=0)
        context._primary = ctypes.c_void_p(40)
        assert context.free_bytes() == 0  # what that one writes there
        assert [name for name, _ in library.calls] == ["cuCtxPushCurrent_v2", "cuMemGetInfo_v2", "cuCtxPopCurrent_v2"]
        load(cuCtxPushCurrent_v2=0, cuMemGetInfo_v2=700, cuCtxPopCurrent_v2=0)
        assert context.free_bytes() == cupys  # by CuPy, which raises if the device is lost


@pytest.mark.parametrize("broken", ["cuInit", "cuDeviceGet"])
@pytest.mark.parametrize("how", ["fails", "is not there"])
def test_what_fails_is_left_to_cupy(load: Any, broken: str, how: str) -> None:
    rest = {name: status for name, status in WORKS.items() if name != broken}
    library = load(**rest, **({broken: 100} if how == "fails" else {}))
    driver.make_context(0)
    assert "cuDevicePrimaryCtxRetain" not in [name for name, _ in library.calls]
    assert driver.initialize() == (broken != "cuInit")


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kind: object) -> Any:
        raise OSError("libcuda.so.1")

    monkeypatch.setattr(driver, "_library", fail)
    driver.make_context(0)
    driver.mind_no_captures()
    assert not driver.initialize()


@pytest.mark.parametrize(("told", "seen"), [(None, "1"), ("0", "0")])
def test_cupy_compiles_headers_once_unless_it_is_told_not_to(
    monkeypatch: pytest.MonkeyPatch, told: str | None, seen: str
) -> None:
    name, found = "CUPY_NVRTC_USE_PCH", list[str | None]()
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.delenv(name, raising=False)
    if told is not None:
        monkeypatch.setenv(name, told)
    monkeypatch.setattr(requirements.importlib, "import_module", lambda module: found.append(os.environ.get(name)))
    requirements.cupy()
    assert (found, os.environ.get(name)) == ([seen], told)


async def test_what_compiles_for_long_is_told(
    fake: Fake, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "asyncsched.devices.cuda.memory")
    monkeypatch.setattr(memory, "_SLOW", 0.0)
    async with opened(1) as s:
        x = await s.put(BLOCK)
        assert not caplog.messages  # a copy compiles nothing
        for _ in range(3):
            await asc.tanh(x)
    (told,) = caplog.messages
    assert told.startswith("tanh took ")
    assert "at first on cuda:0: CuPy compiles kernels, and keeps them on disk" in told
    assert "`await s.warm_up(fn, *examples)`" in told

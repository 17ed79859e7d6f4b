"""Devices on which captured steps are tested."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from asyncsched.devices.sim import SimDevice
from tests.fake_cupy import fake_cupy


@pytest.fixture(params=["cpu", "sim", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A device; where it is the fake of CUDA, its complaints are read at the end."""
    if request.param != "cuda":
        yield SimDevice(3) if request.param == "sim" else "cpu"
        return
    with fake_cupy(7) as fake:
        yield "cuda"
        request.node.funcargs.clear()  # they hold a tensor, whose memory a thread waits for
        gc.collect()
        assert fake.races == []
        assert fake.loop_blocks == []
        assert fake.default_stream_launches == []

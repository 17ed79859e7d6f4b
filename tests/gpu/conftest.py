"""Tests of a CUDA device, each twice: on the card, and on the fake CuPy, which shows that the tests are sound.

`pytest -m gpu` runs them on the card, and skips them with a reason where there is none. Where there is a card those on
the fake are skipped: two modules called `cupy` do not go together in one process.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

from asyncsched.devices.cuda import usable
from tests.conftest import LOOPS
from tests.fake_cupy import Fake, fake_cupy

# Else cuBLAS may choose another order of summation whenever several streams are busy.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
NONE = "no CUDA device that CuPy can use: `python -m asyncsched` says what is missing"


class Card:
    """What the tests run on: a real card, or a fake one.

    Args:
        fake: the fake, if it is one.
    """

    def __init__(self, fake: Fake | None) -> None:
        self.fake = fake

    def pick(self, real: int, fake: int) -> int:
        """How large to make something."""
        return real if self.fake is None else fake


@pytest.fixture(params=LOOPS[:1])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """One loop: what these test is below it."""
    return request.param


@pytest.fixture(scope="session")
def has_card() -> bool:
    return usable()


@pytest.fixture(params=[pytest.param("card", marks=pytest.mark.gpu), "fake"])
def card(request: pytest.FixtureRequest, has_card: bool) -> Iterator[Card]:
    if request.param == "card":
        if not has_card:
            pytest.skip(NONE)
        yield Card(None)
        return
    if has_card:
        pytest.skip("these run on the card here: pytest -m gpu")
    with fake_cupy(seed=1, memory=4 << 30, laziness=0.02) as fake:
        yield Card(fake)
        gc.collect()
        assert fake.problems() == []


@pytest.fixture
def peers(request: pytest.FixtureRequest, card: Card) -> None:
    """Two devices."""
    import cupy

    if card.fake is None and cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two CUDA devices")

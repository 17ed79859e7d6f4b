"""What tests have run in processes: each imports this and no test."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

ITEM = 3  # at which each of these fails
_number = ContextVar("number", default=0)


class OfTwo(Exception):
    """It makes its argument out of others."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} failed with {code}")
        self.code = code


class OfOne(Exception):
    """The same, with as many arguments as it passes on."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} failed")


class OfTheSystem(OSError):
    """It has fields that no attribute keeps."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(code, "failed", name)


def of_two(item: int) -> int:
    if item == ITEM:
        raise OfTwo("it", 7)
    return item


def of_one(item: int) -> int:
    if item == ITEM:
        raise OfOne("it")
    return item


def of_the_system(item: int) -> int:
    if item == ITEM:
        raise OfTheSystem("it", 7)
    return item


def of_a_local_class(item: int) -> int:
    class Local(Exception):
        """No other process can find it."""

    if item == ITEM:
        raise Local("it failed")
    return item


class NotMade:
    """It can be pickled, and not made again."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        return _make, (self.number,)


def _make(number: int) -> Any:
    if number == ITEM:
        raise LookupError("it cannot be made")
    return number


def not_made(item: int) -> Any:
    return NotMade(item)


def not_pickled(item: int) -> Any:
    return (lambda: item) if item == ITEM else item


def same(item: Any) -> Any:
    return item


async def _same(item: int) -> int:
    return item


def coroutine(item: int) -> Any:
    return _same(item) if item == ITEM else item


def dies(item: int) -> int:
    if item == ITEM:
        os._exit(3)
    return item


def counts(item: int) -> int:
    _number.set(_number.get() + 1)
    return _number.get()


def is_long(item: Any) -> bool:
    return len(item) >= ITEM


def outlives_its_parent(item: int) -> int:
    parent = os.getppid()
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.001)
    return item

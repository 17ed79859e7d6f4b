"""Counts of references: exact on every Python that is supported, and of no use to anybody where they are not."""

from __future__ import annotations

import itertools
import sys

import pytest

from asyncsched._core import free_threading
from asyncsched._core.free_threading import references


class Thing:
    __slots__ = ("held",)


@pytest.mark.parametrize("others", [0, 1, 2, 7])
@pytest.mark.parametrize("kind", [list, tuple])
def test_every_reference_is_counted_once(kind: type, others: int) -> None:
    elsewhere = [thing := Thing()] * others
    holder = kind([thing])
    del thing
    assert [references(holder, 0) for _ in range(200)] == [1 + others] * 200
    assert len(elsewhere) == others


def test_variables_arguments_attributes_and_views_are_holders() -> None:
    holder = (Thing(), Thing())
    assert references(holder, 1) == 1
    variable = holder[1]
    assert references(holder, 1) == 2
    variable.held = holder[0]
    assert references(holder, 0) == 2
    assert references([variable.held], 0) == 3  # the new list is one, too

    def asked(argument: Thing) -> int:
        return references(holder, 1)

    assert asked(variable) >= 2  # 3 where an argument is a reference of its own, and not borrowed from the variable
    assert references(holder, 1) == 2


def test_the_calibration_came_out_on_this_python() -> None:
    assert free_threading._calibrated() == free_threading._asking == 1


TURNS = itertools.count()
BROKEN = {
    "borrowed at times": lambda real: lambda thing: real(thing) - next(TURNS) % 2,
    "never above two": lambda real: lambda thing: min(2, real(thing)),
    "immortal": lambda real: lambda thing: 1 << 31,
}


@pytest.fixture(params=BROKEN)
def odd_counts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter whose counts do not come out as expected."""

    class Odd:
        getrefcount = staticmethod(BROKEN[request.param](sys.getrefcount))

    monkeypatch.setattr(free_threading, "sys", Odd)
    monkeypatch.setattr(free_threading, "_asking", free_threading._calibrated())


@pytest.mark.usefixtures("odd_counts")
def test_where_counts_are_odd_something_unseen_holds_everything() -> None:
    assert references([Thing()], 0) > 10**6

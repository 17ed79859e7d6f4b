"""What is written out for speed does what it stands for: the same state afterwards, whatever the state before."""

from __future__ import annotations

import contextvars
import copy
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncsched._core.completions import Completions
from asyncsched._core.instrument import EVENTS, Instrument
from asyncsched._core.ledger import Ledger
from asyncsched._core.model import Account, Value, new_value
from asyncsched.ops.meta import meta
from asyncsched.runtime.life import InlineMode
from asyncsched.tensors.issue import run_at_once

from .rig import Rig

NBYTES = 32
FORM = meta((4,), np.dtype(np.float64))


def at_once(rig: Rig, *, workspace: int = 0, view: bool = False) -> Value | None:
    """Run an operation at once, on the loop's thread; None if it would not."""
    rig.ledger.account.runtime = SimpleNamespace(
        ledger=rig.ledger,
        engine=rig.engine,
        completions=rig.completions,
        inline=InlineMode.ALWAYS,
        thread=threading.get_ident(),
        loop=SimpleNamespace(is_running=lambda: True),
        quiet=contextvars.copy_context(),
    )
    first = new_value(rig.ledger.account, "a device", FORM, array=np.ones(4))
    op = SimpleNamespace(name="add", out=not view)
    kernel = (lambda a, b: a[:]) if view else np.add
    plan: Any = SimpleNamespace(
        nbytes=NBYTES, workspace=workspace, cost=NBYTES + workspace, pair=True, kernel=kernel, meta=FORM, seconds=0.0,
        op=op,
    )  # fmt: skip
    return run_at_once(op, plan, first, first.array, 1.0, None)  # type: ignore[arg-type]


def twin_of(ledger: Ledger) -> Ledger:
    """The same books, to be changed by themselves."""
    twin = copy.copy(ledger)
    twin.account = copy.copy(ledger.account)
    return twin


def books(ledger: Ledger) -> dict[str, Any]:
    return fields(ledger) | {"account": fields(ledger.account, "runtime"), "completions": None}


def fields(thing: Any, *left_out: str) -> dict[str, Any]:
    return {name: getattr(thing, name, "unset") for name in type(thing).__slots__ if name not in left_out}


def in_flight(rig: Rig) -> None:
    rig.held = [rig.submit(cost=10)]  # type: ignore[attr-defined]
    rig.dispatch()


def held(rig: Rig) -> None:
    rig.held = [rig.submit(cost=50)]  # type: ignore[attr-defined]
    rig.run()


def observed(rig: Rig) -> None:
    rig.ledger.observe(Instrument(), EVENTS)


SITUATIONS = {"nothing": lambda rig: None, "tasks in flight": in_flight, "results held": held, "observed": observed}


@pytest.mark.parametrize("workspace", [0, 8])
@pytest.mark.parametrize("view", [False, True], ids=["", "a view"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_task_run_at_once_is_charged_as_the_ledger_says(situation: str, view: bool, workspace: int) -> None:
    """`run_at_once`, `Ledger.charge_at_once` and `new_value`."""
    rig = Rig(max_bytes=200, max_ops=3)
    SITUATIONS[situation](rig)
    twin = twin_of(rig.ledger)
    value = at_once(rig, workspace=workspace, view=view)
    assert value is not None
    own = 0 if view else NBYTES
    expected = new_value(twin.account, "a device", FORM, own, None, value.array)
    expected.base = value.base
    twin.charge_at_once(expected, own, workspace + NBYTES - own)
    if twin.observer is not None:
        expected.seq, twin.sequence = twin.sequence, twin.sequence + 1
    assert books(rig.ledger) == books(twin)
    assert fields(value, "account", "array") == fields(expected, "account", "array")
    assert value.account is rig.ledger.account
    assert (value.base is not None) == view


@pytest.mark.parametrize("running", range(3))
@pytest.mark.parametrize("waiting", ["", "a task", "a claim"])
@pytest.mark.parametrize("busy", [False, True])
def test_a_task_run_at_once_skips_the_queues_where_the_ledger_is_idle(running: int, waiting: str, busy: bool) -> None:
    """`run_at_once` and `Ledger.idle`."""
    rig = Rig(max_ops=2)
    kept = [rig.submit() for _ in range(running)]
    rig.dispatch()
    if waiting == "a task":
        kept.append(rig.submit())
    elif waiting:
        rig.claim(1)
    rig.ledger.busy = busy
    assert rig.ledger.idle == (not waiting and running < 2)
    assert (at_once(rig) is not None) == (rig.ledger.idle and not busy)
    rig.ledger.busy = False


@pytest.mark.parametrize("held_bytes", [0, 167, 168, 169, 200])
def test_a_task_run_at_once_fits_beside_the_charged_bytes(held_bytes: int) -> None:
    """`run_at_once` and `Account.make_fit`."""
    rig = Rig(max_bytes=200)
    rig.ledger.account.used = held_bytes
    task, _ = rig.task(cost=NBYTES)
    fits = rig.ledger.account.make_fit(task)
    value = at_once(rig)
    assert (value is not None) == fits
    assert rig.ledger.account.used == held_bytes + NBYTES * fits


@pytest.mark.parametrize("wants_bytes", [False, True])
@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize("here", ["", "another thread", "closed", "this thread"])
def test_a_dropped_result_gives_its_bytes_back_as_the_completions_say(
    wants_bytes: bool, ending: bool, here: str
) -> None:
    """`Value.__del__` and `Completions.dropped`; and `Ledger.drop`, where it goes the shorter way."""

    def dropped(drop: Callable[[Completions, Account], None]) -> tuple[Any, ...]:
        completions = Completions(lambda: None)
        completions.wants_bytes, completions.ending = wants_bytes, ending
        if here:
            completions.immediate_thread = threading.get_ident() + (here == "another thread")
        account = Account(100, completions, used=70, closed=here == "closed")
        drop(completions, account)
        items = [(item[0] is account, *item[1:]) for item in completions.items]
        return items, fields(completions, "wake", "items"), account.used, account.changed

    def by_value(_: Completions, account: Account) -> None:
        value = new_value(account, None, None, 7)
        value.charge, value.seq = 7, 3
        del value

    def as_it_says(completions: Completions, account: Account) -> None:
        if here == "this thread":
            account.used -= 7
        else:
            completions.dropped(SimpleNamespace(account=account, charge=7, seq=3))

    assert dropped(by_value) == dropped(as_it_says)

"""How long something takes, and what others spend."""

from __future__ import annotations

import pytest

from asyncsched.runtime.rates import Spent, Took


def took(*seconds: float) -> Took:
    found = Took()
    for one in seconds:
        found.add(one)
    return found


def test_the_mean_goes_up_sooner_than_down() -> None:
    assert Took().mean == Took().likely == 0
    steady = [1.0] * 20
    assert took(*steady).mean == took(*steady).likely == 1
    assert took(*steady, 1.2).mean == pytest.approx(1.1)
    assert took(*steady, 0.8).mean == pytest.approx(0.975)
    assert took(*steady, 1.2).likely > 1.1


def test_a_single_stall_counts_little_and_what_goes_on_counts_in_full() -> None:
    steady = [1.0] * 20
    assert took(*steady, 100).mean == pytest.approx(1.5)
    assert took(*steady, 100, *steady).mean < 1.1
    assert took(*steady, 3, 4).mean == took(*steady, 4, 3).mean == 3


def test_what_was_cut_short_takes_longer() -> None:
    found = took(1.0)
    found.at_least(0.5)
    assert found.mean == 1
    found.at_least(5)
    assert found.mean == 5


def test_the_first_few_have_more_weight() -> None:
    found = Took(1 / 32, 1 / 32)
    for one in (1.0, 2.0, 3.0, 2.0):
        found.add(one)
    assert found.mean == pytest.approx(2)


def test_what_others_spend_per_second() -> None:
    spent = Spent()
    assert spent.by_others("a", 0.0) == 0
    for second in range(100):
        spent.add("a", 0.25, second + 0.5)
        spent.add("b", 0.5, second + 1.0)
    assert spent.by_others("a", 100.0) == pytest.approx(0.5, rel=0.3)
    assert spent.by_others("b", 100.0) == pytest.approx(0.25, rel=0.3)
    assert spent.by_others("c", 100.0) == pytest.approx(0.75, rel=0.3)
    assert spent.by_others("a", 120.0) < 0.001
    spent.add("b", 0.5, 1e6)  # long after: no number is too large
    assert 0 < spent.by_others("a", 1e6 + 1) < 0.5


def test_only_so_many_are_remembered() -> None:
    spent = Spent()
    for who in range(3000):
        spent.add(who, 1.0, 1.0)
    assert spent.by_others(0, 2.0) == pytest.approx(spent.by_others(2999, 2.0) * 1024 / 1023)

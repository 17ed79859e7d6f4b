"""A model of the turns: what each tenant got, and which class and whom that allows to be next."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

from asyncsched._core.admission import PATIENCE
from asyncsched._core.tenants import Tenant

Share = tuple[Any, float]  # who takes turns: a tenant's name, or the model of a scope that names none; and the class


class Shares:
    """Checks each admission against those before it."""

    def __init__(self, quantum: int) -> None:
        self.quantum = quantum
        self.weights: dict[Share, float] = {}
        self.got: dict[Share, float] = {}  # costs over weights, in quanta
        self.largest: dict[Share, float] = {}  # the same of a single task
        self.passed: dict[int, int] = {}  # admissions to other classes while something in this one waited
        # By how much one share led another, least and most, since both always had something that could go.
        self.leads: dict[tuple[Share, Share], tuple[float, float]] = {}

    def opened(self, share: Share, parent: Share, weight: float | None, tenant: Tenant) -> None:
        """A scope was opened."""
        if share not in self.weights:
            self.weights[share] = self.weights.get(parent, 1) if share[0] == parent[0] else 1
            self.got[share] = self.largest[share] = 0.0
        if weight is not None:
            self.weights[share] = weight
        assert tenant.weight == self.weights[share]

    def served(self, share: Share, cost: int, able: set[Share], waiting: Iterable[int]) -> None:
        """A task was admitted in turn, of those shares that had one that could go. Other classes may have waited."""
        level = share[1]
        assert level == min({level for _, level in able}, key=self._rank)
        self.passed = {other: self.passed.get(other, 0) + 1 for other in waiting if other != level}
        rivals = [s for s in self.got if s in able and s[1] == level]  # in one order, so that pairs are found again
        leads = {pair: self.leads.get(pair, (self._lead(pair),) * 2) for pair in combinations(rivals, 2)}
        price = (1 + cost / self.quantum) / self.weights[share]
        self.got[share] += price
        self.largest[share] = max(self.largest[share], price)
        self.leads = {pair: lead for pair, lead in self.leads.items() if pair[0][1] != level}
        for pair, (least, most) in leads.items():
            least, most = self.leads[pair] = min(least, self._lead(pair)), max(most, self._lead(pair))
            assert most - least <= 2 + self.largest[pair[0]] + self.largest[pair[1]] + 1e-6, pair

    def wait(self, levels: set[int]) -> None:
        """These classes wait. What others were passed over by is over."""
        self.passed = {level: count for level, count in self.passed.items() if level in levels}

    def overtaken(self) -> None:
        """A task was admitted out of turn, since no share had one that could go in turn."""
        self.leads = {}

    def _lead(self, pair: tuple[Share, Share]) -> float:
        return self.got[pair[0]] - self.got[pair[1]]

    def _rank(self, level: int) -> tuple[int, int]:
        passed = self.passed.get(level, 0)
        return -passed if passed >= PATIENCE else 0, -level

"""Which of a cluster's workers are used, and whether on their cards."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .card import RESOURCE

Worker: TypeAlias = dict[str, Any]  # as Dask describes it, with its address
Workers: TypeAlias = dict[Any, Worker]  # by name


class Choice:
    """Which workers the user wants.

    Args:
        wanted: names or addresses, or how many; None for all.
        gpu: True for those with cards alone, False for NumPy on all; None for cards if all that are chosen have one.
    """

    def __init__(self, wanted: int | Sequence[Any] | None, gpu: bool | None) -> None:
        self._wanted = wanted
        self._gpu = gpu
        self.count = wanted if isinstance(wanted, int) else 0  # how many to wait for

    def enough(self, known: Workers) -> bool:
        """Whether there are as many as are waited for."""
        return len(self._fitting(known)) >= self.count

    def among(self, known: Workers) -> Workers:
        """The chosen ones of the known workers.

        Raises:
            RuntimeError: if there are none, or not those asked for.
        """
        fitting, kind = self._fitting(known), f" with {RESOURCE}=1" if self._gpu else ""
        if isinstance(self._wanted, int) or self._wanted is None:
            found = dict(itertools.islice(fitting.items(), self._wanted))
        else:
            names = {worker["address"]: name for name, worker in fitting.items()} | {name: name for name in fitting}
            if missing := [name for name in self._wanted if name not in names]:
                raise RuntimeError(f"no workers {missing}{kind} in this cluster: it has {list(fitting)}")
            found = {names[name]: fitting[names[name]] for name in self._wanted}
        if not found:
            raise RuntimeError(f"the cluster has no workers{kind} yet: workers=2 waits for two")
        return found

    def bound(self, addresses: Mapping[Any, str], known: Workers) -> dict[Any, str]:
        """Where the chosen workers are now, by name. In the place of one that is gone comes one that nobody chose,
        unless the user named them."""
        named = not isinstance(self._wanted, int) and self._wanted is not None
        spare = iter(
            [] if named else [worker for name, worker in self._fitting(known).items() if name not in addresses]
        )
        found = {name: known.get(name) or next(spare, None) for name in addresses}
        return {name: addresses[name] if worker is None else worker["address"] for name, worker in found.items()}

    def on_cards(self, chosen: Workers) -> bool:
        """Whether tasks run on their cards.

        Raises:
            RuntimeError: if nobody said, and some have one.
        """
        if self._gpu is not None:
            return self._gpu
        without = [name for name, worker in chosen.items() if not _has_card(worker)]
        if without and len(without) < len(chosen):
            raise RuntimeError(
                f"some of these workers have Dask's resource {RESOURCE}, and {without} have not: gpu=True takes those"
                " that have it, gpu=False runs on NumPy on all, workers=[...] names the ones to take"
            )
        return not without

    def _fitting(self, known: Workers) -> Workers:
        return {name: worker for name, worker in known.items() if not self._gpu or _has_card(worker)}


def _has_card(worker: Mapping[str, Any]) -> bool:
    return bool(worker["resources"].get(RESOURCE, 0) >= 1)

"""The costs of tasks, learned from those before.

Theory of operation. An operation declares how many bytes it takes. A callable does not, and a user who gives `nbytes=`
has to measure it. So the first calls of each kind are measured as they run: the bytes that PyTorch allocates meanwhile,
if the program has imported it, and the arrays that they return. Later calls are charged by that. The charge of a call
that was made can be corrected only for the bytes that it left behind. The first call of a kind often allocates what
later calls find there (an optimiser's moments), so it is forgotten once a second one was measured.

The memory of the whole process is looked at, too. If it grows by far more than was learned, while nothing else runs,
that is memory which cannot be seen, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple, TypeAlias

from .._arguments import parse_bytes
from .._core.ledger import Ledger
from .._core.model import Value
from .._system import Log
from ..devices.host.allowed import resident_memory

_MEASURED: Final = 4  # calls of a kind. Measuring slows them down. A guess
_REMEMBERED: Final = 1024  # kinds
_UNSEEN: Final = 64 * 2**20  # a process may grow by so many bytes more than was learned, without a warning. A guess
_log: Final = Log(__name__)


Kind: TypeAlias = tuple[str, tuple[Hashable, ...]]  # a name, and the forms of the tensors among the arguments


class Known(NamedTuple):
    """The known costs of a kind of call, in bytes."""

    nbytes: int
    """The most at one time."""
    workspace: int
    """The part of that which was free again when the call ended."""
    calls: int
    """How many were measured."""


class LearnedCost:
    """The bytes that a callable takes, learned from the calls before: for `nbytes=` of `submit`, `submit_nowait` and
    `call`.

    Calls are of one kind when their names (`name=`, by default the function's) and the shapes and dtypes of the tensors
    among their arguments are the same. The first four of each kind are measured: the arrays that they return, and what
    PyTorch allocates in them (on CUDA by its allocator's statistics; on the CPU tensor by tensor, which takes some tens
    of microseconds an operation). Later calls are charged the most that was measured, the first call left out. A call
    for which there is no room waits. Other memory that a function allocates is not seen, such as that of ONNX Runtime,
    of JAX, or of NumPy's arrays that it drops: for that give a number as `nbytes=` instead. If the process grows by
    64 MiB more than was learned from a call on the CPU, and by four times as much, a warning is logged, once. It takes
    a call during which no other task runs.

    A result that is no array, such as a loss with its graph, is charged the bytes that the call left behind, until its
    handle drops.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         cost, x = asc.LearnedCost(first="1 MiB"), await s.put(np.arange(1000.0))
    ...         for _ in range(3):
    ...             await s.call(np.cumsum, x, nbytes=cost)
    ...         print(cost)
    >>> asc.run(main)
    LearnedCost(cumsum: 8,000 bytes)

    Args:
        first: the charge while nothing is known of a kind: bytes, or text such as "64 MiB". The default is the bytes of
            the inputs, as for any callable.

    Raises:
        ValueError, TypeError: for a size that is none.
    """

    def __init__(self, first: int | str | None = None) -> None:
        self._first = None if first is None else parse_bytes(first, "first")
        self._known: dict[Kind, tuple[Known, int]] = {}  # and the most bytes that PyTorch's allocator gave
        self._warned: set[str] = set()  # names

    def known(self, name: str) -> tuple[Known, ...]:
        """The records of the calls with this name, one for each kind."""
        return tuple([known for kind, (known, _) in list(self._known.items()) if kind[0] == name])

    def _lesson(self, name: str, inputs: Iterable[Value], workspace: object, ledger: Ledger | None) -> Lesson:
        """A lesson for a call with these inputs: what earlier calls cost, and what this one adds. The ledger, given for
        a call on the CPU, says what else runs."""
        if workspace is not None:
            raise ValueError("a LearnedCost learns the workspace, too: leave out workspace=")
        forms = [None if value.meta is None else (value.meta.shape, value.meta.dtype) for value in inputs]
        return Lesson(self, (name, tuple(forms)), ledger)

    def __repr__(self) -> str:
        kinds = dict.fromkeys(kind[0] for kind in list(self._known))
        found = [f"{name}: {max(known.nbytes for known in self.known(name)):,} bytes" for name in kinds]
        return f"{type(self).__name__}({', '.join(found) or 'nothing yet'})"


class Lesson:
    """One call. It is charged by the known costs of its kind, and may add to these."""

    def __init__(self, cost: LearnedCost, kind: Kind, ledger: Ledger | None) -> None:
        self._all, self._kind, self._warned, self._ledger = cost._known, kind, cost._warned, ledger
        self._before: tuple[tuple[int, int], tuple[int, int]] | None = None  # what ran, and the process's memory
        known, allocated = self._all.get(kind, (None, 0))
        self.allocated: int = allocated
        self.nbytes: int | None = cost._first if known is None else known.nbytes
        self.workspace: int | None = None if known is None else known.workspace

    def wanted(self) -> bool:
        known, _ = self._all.get(self._kind, (None, 0))
        if known is not None and known.calls >= _MEASURED:
            return False
        if self._ledger is not None and self._kind[0] not in self._warned:
            self._before = self._running(self._ledger), resident_memory()
        return True

    @staticmethod
    def _running(ledger: Ledger) -> tuple[int, int]:
        return ledger.in_flight, ledger.submitted

    def _check_growth(self, nbytes: int) -> None:
        """Warn once for a name if the process grew by much more than was seen."""
        if self._ledger is None or self._before is None:
            return
        running, (before, most_before) = self._before
        now, most = resident_memory()
        grown = max(now, most if most > most_before else 0) - before
        alone = running[0] == 1 and running == self._running(self._ledger)
        if alone and grown > nbytes + _UNSEEN and grown > 4 * nbytes:
            self._warned.add(self._kind[0])
            _log.warning(
                "the process grew by %s bytes in %s, of which a LearnedCost saw %s: it sees the arrays that a function"
                " returns and PyTorch's tensors, and no other library's memory. Give `nbytes=` as a number, or if the"
                " library keeps the memory, a lower max_bytes",
                f"{grown:,}",
                self._kind[0],
                f"{nbytes:,}",
            )

    def learn(self, peak: int, kept: int, made: int) -> None:
        nbytes = max(peak, kept, made)
        self._check_growth(nbytes)
        found = Known(nbytes, nbytes - (made or kept), 1)
        known, allocated = self._all.get(self._kind, (None, 0))
        if known is not None:
            found = max(found, known) if known.calls > 1 else found
            found = found._replace(calls=known.calls + 1)
        elif len(self._all) >= _REMEMBERED:
            self._all.clear()  # kinds that are still in use are soon measured again
        self._all[self._kind] = found, max(peak, allocated)

"""Dask's callbacks (`ProgressBar`, `Profiler`, `Cache`), called for a graph on the thread that waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from threading import get_ident
from typing import Any

from dask.callbacks import unpack_callbacks
from dask.local import finish_task, start_state_from_dask
from dask.order import order


class Watchers:
    """The callbacks of one graph, with the state that Dask's own schedulers show them.

    Streams call it with a key when they begin a task, and with its result when that is there. Each sees a task begin
    after what it reads has ended, so here they come in that order, too.
    """

    def __init__(self, callbacks: Iterable[Any], graph: Mapping[Any, Any]) -> None:
        self._events: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._graph = graph
        self._state: dict[str, Any] = {}
        self._finish: list[Any] = []
        callbacks = list(callbacks)
        for start, _, _, _, finish in callbacks:
            if start:
                start(graph)
            self._finish += [finish] if finish else []
        _, self._start_state, self._before, self._after, _ = unpack_callbacks(callbacks)

    def begin(self, nodes: Mapping[Any, Any], wanted: set[Any]) -> None:
        """The graph is about to run."""
        self._sortkey, self._wanted = order(nodes).get, wanted
        self._state |= start_state_from_dask(dict(nodes), keys=list(wanted), sortkey=self._sortkey)
        for told in self._start_state:
            told(self._graph, self._state)

    def __call__(self, key: Any, *made: Any) -> None:
        """A task begins or has ended. On a stream's thread."""
        self._events.put((get_ident(), key, *made))

    def tell_until_done(self, future: Future[Any]) -> None:
        """Tell the callbacks what happens, until the graph has ended."""
        future.add_done_callback(lambda _: self._events.put(None))
        while (event := self._events.get()) is not None:
            self._tell(*event)

    def _tell(self, thread: int, key: Any, *made: Any) -> None:
        state = self._state
        if not made:
            state["ready"].remove(key)
            state["running"].add(key)
            for told in self._before:
                told(key, self._graph, state)
            return
        finish_task(self._graph, key, state, self._wanted, self._sortkey, delete=False)
        for told in self._after:
            told(key, made[0], self._graph, state, thread)

    def finish(self, failed: bool) -> None:
        """The graph has ended."""
        for told in self._finish:
            told(self._graph, self._state, failed)

"""The tree of scopes: how they are opened, ended and closed, and how a closing scope hands over its contents."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .admission import Admission
from .ledger import Ledger
from .model import Scope
from .tenants import Share

_AS_AROUND = Share()
_GROWING = 0.5  # added to a growing scope's priority: it goes before newcomers of its class and after higher classes


class Scopes:
    """Opens and closes scopes.

    Args:
        ledger, admission: the engine's.
        close: the engine's `close_scope`, which closes a scope that is over.
    """

    def __init__(self, ledger: Ledger, admission: Admission, close: Callable[[Scope], None]) -> None:
        self._ledger = ledger
        self._admission = admission
        self._close = close

    def open(self, name: str, parent: Scope, share: Share | None = _AS_AROUND) -> Scope:
        """Open a child scope with a queue of its own.

        With `share=None` it uses its parent's queue, and first closes earlier siblings there that are over.
        """
        queue = parent.queue
        if share is not None:
            queue = self._admission.new_queue(queue, share)
        elif parent.ended_children:
            self._sweep(parent.ended_children)
        scope = Scope(name, queue, parent.account, parent)
        parent.children[scope] = None
        if self._ledger.scope_observer is not None:
            self._ledger.scope_observer.scope_opened(scope)
        return scope

    def open_growth(self, scope: Scope, name: str) -> Scope:
        """Open a scope beside `scope` for a claim by which the reserve of `scope` grows."""
        assert scope.parent is not None
        tenant = scope.queue.tenant
        share = Share(tenant.name, tenant.weight, tenant.priority.level + _GROWING)
        growth = self.open(name, scope.parent, share)
        growth.grows = True
        if scope.growing is None:
            scope.growing = {}
        scope.growing[growth] = None
        self._ledger.growths += 1
        return growth

    def close_growth(self, scope: Scope, growth: Scope) -> None:
        """Close a growth: its claim was granted, or is not wanted any more."""
        assert scope.growing is not None
        del scope.growing[growth]
        self._close(growth)

    def end(self, scope: Scope) -> None:
        """Mark a scope to which nothing more will be submitted.

        Once it is over it closes: now, when a later scope opens in its parent's queue, or at the latest with its
        parent.
        """
        parent = scope.parent
        assert parent is not None
        scope.ended = True
        if self._ledger.scope_observer is not None:
            self._ledger.scope_observer.scope_left(scope)
        if not (scope.tasks or scope.children or scope.unseen):  # as mostly; `over` looks at children, too
            self.close(scope)
            return
        if parent.ended_children is None:
            parent.ended_children = deque()
        parent.ended_children.append(scope)

    def _sweep(self, ended: deque[Scope]) -> None:
        """Close scopes that are over.

        Each call looks at two, and adds one. So they do not pile up, and the cost does not depend on their number.
        """
        for _ in range(min(2, len(ended))):
            scope = ended.popleft()
            if scope.closed:
                pass
            elif scope.tasks or not scope.over():  # most often it has tasks, which is quicker asked
                ended.append(scope)
            else:
                self._close(scope)

    def close(self, scope: Scope, error: BaseException | None = None) -> None:
        """Take a finished scope out of the tree, and charge its remaining bytes to its parent in the same step."""
        assert not scope.tasks
        parent = scope.parent
        assert parent is not None
        self._closed(scope, error)
        parent.children.pop(scope, None)
        if scope.reserve:
            self._ledger.unreserve(scope)
        if scope.children:
            self._hand_over(scope, parent)

    def _closed(self, scope: Scope, error: BaseException | None = None) -> None:
        scope.closed = True
        if self._ledger.scope_observer is not None:
            self._ledger.scope_observer.scope_closed(scope, error)

    def _hand_over(self, scope: Scope, parent: Scope) -> None:
        """Move the open children of a closing scope to its parent. Children that have ended close with it."""
        todo, moved = list(scope.children), []
        while todo:
            child = todo.pop()
            if child.ended:
                self._closed(child)
                todo += child.children
            else:
                assert child.parent is not None
                del child.parent.children[child]
                child.parent = parent
                parent.children[child] = None
                moved.append(child)
        while moved:
            child = moved.pop()
            child.account = child.account.open
            moved += child.children

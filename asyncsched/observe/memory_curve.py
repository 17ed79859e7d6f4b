"""The tracked bytes of a recorded run over time, added up from its tasks and what was released."""

from __future__ import annotations

from collections import defaultdict

from .recording import Recording


def memory_curve(recording: Recording) -> list[tuple[float, int]]:
    """Tracked bytes after each change: (seconds, bytes). A scope's reserve counts from its claim to its end."""
    reserved = {number: scope for number, scope in recording.scopes.items() if scope.reserve}
    home: dict[int, int] = {}

    def account(number: int) -> int:
        """The scope whose reserve this one's tasks use; 0 for the scheduler's limit."""
        while number and number not in reserved:
            number = recording.scopes[number].parent if number in recording.scopes else 0
        return number

    owner = {task.seq: home.setdefault(task.scope, account(task.scope)) for task in recording.tasks if not task.claim}
    changes: list[tuple[float, int, int]] = []
    for task in recording.tasks:
        if task.launched is None:
            continue
        if task.claim:
            parent = recording.scopes[task.scope].parent if task.scope in recording.scopes else 0
            changes.append((task.done, account(parent), task.kept))
            continue
        where = owner[task.seq]
        changes.append((task.launched, where, task.cost))
        if task.cost != task.kept:
            changes.append((task.done, where, task.kept - task.cost))
    changes += [(when, owner.get(seq, 0), -nbytes) for when, seq, nbytes in recording.released]
    changes += [(scope.closed, -number, 0) for number, scope in reserved.items() if scope.closed is not None]
    changes.sort(key=lambda change: change[0])
    used: dict[int, int] = defaultdict(int)
    used[0], curve = recording.metadata.get("bytes_before", 0), []
    outer: dict[int, int] = {}  # for each reserve that was given back, the account that it went to
    for when, where, nbytes in changes:
        if where < 0:
            outer[-where] = account(recording.scopes[-where].parent)
            where, nbytes = outer[-where], used[-where] - reserved[-where].reserve
        while where in outer:
            where = outer[where]
        used[where] += nbytes
        if where == 0:
            curve.append((when, used[0]))
    return curve

"""What users are told of a stall: one line in the log, or the text of an error."""

from __future__ import annotations

from .._core.callsite import line_of
from .._core.model import Account, Task
from .deadlock import Finding, known, listed
from .runtime import Runtime


def line_told(runtime: Runtime, task: Task, seconds: float, why: str) -> str:
    """What the ledger knows of a stall, in one line."""
    known_to_it = "; ".join(known_of(runtime, task.scope.account))
    return f"for {seconds:.3g} s {_stuck(task)} ({known_to_it}); but {why}. `s.explain()` searches for who holds them"


def text_told(task: Task, finding: Finding, needed: int) -> str:
    """Why a task is stuck, who holds the bytes, and the cure: a limit of so many bytes."""
    if finding.queued:
        cure = (
            "give each side bytes of its own, by `async with` around its loop: the consumer"
            f" s.scope(reserve={needed - finding.queued}), for what is held outside the queue and what waits; the"
            " producer s.scope(reserve=...), which bounds what is in the queue; together at most the limit"
        )
    # Names no limit: with a higher one, more scopes that reserve may come in first
    elif finding.reserved:
        cure = (
            "drop results sooner, take fewer at a time, reserve less at a time, or reserve also for waiting"
            " tasks (`Batcher(reserve=)` for a batch, `Stepper(scheduler=scope)` for steps), or raise the limit"
        )
    else:
        cure = (
            "drop results sooner, take fewer at a time, reserve with s.scope(reserve=...), or raise the limit"
            f" to {needed:,} bytes, which would have been enough for all waiting tasks"
        )
    return "\n".join([_stuck(task), *[f"  {holder}" for holder in finding.lines], f"cure: {cure}"])


def _stuck(task: Task) -> str:
    account, others = task.scope.account, task.scope.account.pending - 1
    more = f", and {others:,} more task{'s wait' if others > 1 else ' waits'}" if others else ""
    return (
        f"{task.name} (submitted at {line_of(task.site)}) needs {task.cost:,} bytes, and {account.used:,} of the"
        f" {account.limit:,} allowed are held; nothing in flight will free any{more}"
    )


def known_of(runtime: Runtime, account: Account) -> list[str]:
    """What the ledger knows of the holders of an account's bytes, without a search."""
    parts = [(one.nbytes, one.place) for one, _ in known(runtime, [account])]
    return listed(parts, account.used, f"in results{' and tasks in flight' if account.in_flight else ''}")

"""Failures, and what an awaiter gets of them: what the tests of both share."""

from __future__ import annotations

from asyncsched._core.failure import Failure


class Thing:
    """Stands for an array: something that a weak reference can watch."""


# A runner, in a module that looks like one of the package. Such frames are left out of tracebacks, but the body's frame
# refers back to them, so a runner lets go of what it ran.
RUNNER = {"__name__": "asyncsched.devices.runner", "Failure": Failure}
exec(
    """
def failure_of(body, *args):
    try:
        body(*args)
    except BaseException as error:
        return Failure.of(error, "body", None)
    finally:
        del body, args
""",
    RUNNER,
)
failure_of = RUNNER["failure_of"]


def caught(failure):
    """What an awaiter gets."""
    try:
        failure.rethrow()
    except BaseException as error:
        return error


def divide(thing=None):
    return 1 / 0

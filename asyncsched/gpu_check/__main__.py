"""One program, in this process: `python -m asyncsched.gpu_check NAME FOLDER [--quick] [--blocks]`. `entries` reads the
status. With `--blocks` each allocation has a block of its own."""

from __future__ import annotations

import inspect
import sys
import traceback
from pathlib import Path

from ..runtime.loops import run
from .entries import NotHere, Report
from .libraries import one_for_each
from .programs import AFTER, GROUPS


def main(name: str, folder: str, *options: str) -> int:
    """Returns the exit status."""
    report = Report(Path(folder), quick="--quick" in options)
    try:
        (program,) = [programs[name] for programs in (*GROUPS.values(), AFTER) if name in programs]
        if "--blocks" in options:
            one_for_each()
        found = program(report)
        if inspect.iscoroutine(found):
            run(found)
    except NotHere as reason:
        print(reason)
        return 77
    except BaseException as error:
        traceback.print_exc()
        report.tell("raised", f"{type(error).__name__}: {error}")
        return 1 if isinstance(error, AssertionError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

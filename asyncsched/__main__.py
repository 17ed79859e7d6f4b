"""`python -m asyncsched`: what this machine offers; `... explain PID`: what a process of yours waits for;
`... trace RUN`: where the time of a recorded run went."""

from __future__ import annotations

import sys

from .devices.environment import describe


def main(arguments: list[str]) -> str:
    """What a command prints.

    Raises:
        SystemExit: for one that is none.
    """
    match arguments:
        case []:
            return describe()
        case ["explain", pid] if pid.isdecimal():
            from .observe.on_signal import ask

            return ask(int(pid))
        case ["trace", *options]:
            from .observe.report import command

            return command(options)
    raise SystemExit("usage: python -m asyncsched [explain PID | trace RUN [--html PAGE]]")


if __name__ == "__main__":
    print(main(sys.argv[1:]))

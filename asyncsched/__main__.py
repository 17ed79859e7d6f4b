"""`python -m asyncsched`: what this machine offers.

`... explain PID`: what a process of yours waits for. `... trace TRACE`: where the time of a run went. `... replan
TRACE`: what other limits would make of it.
"""

from __future__ import annotations

import argparse
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
        case ["trace" | "replan" as name, *rest]:
            from .observe import replan, report

            command = report if name == "trace" else replan
            parser = argparse.ArgumentParser(f"python -m asyncsched {name}", description=command.__doc__)
            command.add_arguments(parser)
            try:
                text: str = command.report(parser.parse_args(rest))
            except (OSError, ValueError, ImportError) as error:
                parser.error(str(error))
            return text
    raise SystemExit("usage: python -m asyncsched [explain PID | trace TRACE | replan TRACE]")


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # for ASCII alone, say
    print(main(sys.argv[1:]))

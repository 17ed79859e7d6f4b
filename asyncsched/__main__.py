"""`python -m asyncsched`: what this machine offers.

`... explain PID`: what a process of yours waits for. `... replan TRACE`: what other limits would make of a run.
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
        case ["replan", *rest]:
            from .observe import replan

            parser = argparse.ArgumentParser("python -m asyncsched replan", description=replan.__doc__)
            replan.add_arguments(parser)
            try:
                return replan.report(parser.parse_args(rest))
            except (OSError, ValueError, ImportError) as error:
                parser.error(str(error))
    raise SystemExit("usage: python -m asyncsched [explain PID | replan TRACE]")


if __name__ == "__main__":
    print(main(sys.argv[1:]))

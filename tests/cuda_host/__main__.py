"""The command: see the package's docstring."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import __doc__ as about
from . import checks
from .environment import Environment, why_not

SKIPPED = 77  # the exit status where it cannot be set up, as automake has it

parser = argparse.ArgumentParser(
    prog="python -m tests.cuda_host", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("directory", type=Path, help="where the virtual environment and compiled kernels are, or will be")
parser.add_argument("what", nargs="?", choices=["run"], help="also run everything on it")
parser.add_argument(
    "--minutes", type=float, default=float("inf"), help="for the tests for a card, whose kernels take long to compile"
)
options = parser.parse_args()
if reason := why_not():
    print(f"CuPy in host memory is skipped: it {reason}")
    sys.exit(SKIPPED)
environment = Environment(options.directory)
environment.set_up()
print(f"ready: {environment.runner} python ...", flush=True)
if options.what:
    sys.exit(checks.run(environment, 60 * options.minutes))

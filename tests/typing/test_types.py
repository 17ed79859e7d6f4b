"""What mypy says of a user's program: it knows what comes back, and finds what always fails."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "user_program.py"
ROOT = PROGRAM.parents[2]

Errors = dict[int, set[str]]  # the codes of the errors in each line


def expected() -> Errors:
    lines = enumerate(PROGRAM.read_text().splitlines(), 1)
    return {number: set(found[1].split(", ")) for number, line in lines if (found := re.search(r"# E: (.+)$", line))}


def said_by_mypy() -> Errors:
    # Of a truth value mypy says nothing but that what follows is never reached, and that only when asked.
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unreachable", str(PROGRAM.relative_to(ROOT))]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert said.returncode < 2, said.stdout + said.stderr
    errors: Errors = defaultdict(set)
    for name, number, code in re.findall(r"^(.+?):(\d+): error: .*\[([\w-]+)\]$", said.stdout, re.MULTILINE):
        if Path(name).name == PROGRAM.name:
            errors[int(number)].add(code)
    return dict(errors)


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy, which is in the extra [dev]")
@pytest.mark.timeout(600)  # mypy reads NumPy, too, when it runs for the first time
def test_mypy_finds_what_is_wrong_in_a_users_program_and_nothing_else():
    assert len(expected()) > 20
    assert said_by_mypy() == expected()

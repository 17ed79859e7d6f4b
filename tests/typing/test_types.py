"""What mypy and pyright say of a user's program: they know what comes back, and find what always fails."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.thorough import thoroughly

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


def lines_said_by_pyright() -> set[int]:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(PROGRAM)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert said.returncode < 2, said.stdout + said.stderr
    found = json.loads(said.stdout)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}


def needs(checker: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(checker) is None
    return pytest.mark.skipif(missing, reason=f"needs {checker}, which is in the extra [dev]")


@thoroughly
@needs("mypy")
@pytest.mark.timeout(600)  # mypy reads NumPy, too, when it runs for the first time
def test_mypy_finds_what_is_wrong_in_a_users_program_and_nothing_else():
    assert len(expected()) > 20
    assert said_by_mypy() == expected()


@thoroughly
@needs("pyright")
@pytest.mark.timeout(600)
def test_pyright_finds_errors_in_the_same_lines():
    # Of a truth value it speaks where that is asked for, and not of what is never reached.
    assert lines_said_by_pyright() == {line - (codes == {"unreachable"}) for line, codes in expected().items()}

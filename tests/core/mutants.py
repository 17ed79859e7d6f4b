"""Do the tests notice a small fault in the core? Faults drawn by chance, one at a time; run by hand.

    python -m tests.core.mutants --list                 # the faults that are drawn
    python -m tests.core.mutants --jobs 2               # all of them: some hours
    python -m tests.core.mutants --only 3 17            # two of them

Each mutant is one change in one file of `asyncsched/_core`: a comparison, `not`, `and` or `or` turned round, `+` and
`-` swapped, a 0 or a 1 that is off by one, a statement that is left out. It is made in a copy of the package, with the
tests beside it; these run stage by stage, until one fails. A mutant is also killed when a stage takes far longer than
it does without one: something hangs. Those that survive are to be looked at: a test is missing, or the code does not
need what was changed, or nobody can tell the difference.

Not drawn, since nobody could tell the difference:

- `assert` and `validate`: they hold anyway, and are themselves tests. Docstrings, annotations, imports, declarations in
  classes, `if TYPE_CHECKING`: nothing runs.
- `__repr__` and text: for people.
- `Final` numbers of modules: guesses, such as how many rounds a dispatch takes; and names of states.

Nor a local name that is not bound, which whatever runs that line notices.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
CORE = Path("asyncsched/_core")
SEED, DRAWN = 20261125, 60
STAGES = (
    ("tests/core", "--ignore=tests/core/test_state_machine.py"),
    ("tests/core/test_state_machine.py",),
    ("tests/runtime",),
    ("tests/differential",),
)
HOW_MANY = {
    "ASYNCSCHED_THOROUGH": "1", "ASYNCSCHED_PROGRAMS": "200", "ASYNCSCHED_CUDA_PROGRAMS": "25",
    "ASYNCSCHED_FINALISER_PROGRAMS": "20",
}  # fmt: skip
PATIENCE = 4  # times what a stage takes without a mutant, and half a minute

SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"), ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is"), ast.And: ("and", "or"),
    ast.Or: ("or", "and"), ast.Add: (r"\+", "-"), ast.Sub: ("-", "+"),
}  # fmt: skip
STATEMENTS = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Return, ast.Break, ast.Continue)
APART = ("__repr__", "validate")
Span = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """Bytes of a file, and what stands in their place."""

    file: Path
    line: int
    span: Span
    before: str
    after: str
    text: str  # the line

    def __str__(self) -> str:
        before = " ".join(self.before.split())
        where = "" if before == self.text else f"    in {self.text[:90]}"
        return f"{self.file}:{self.line}: {before[:80]}  ->  {self.after or '(nothing)'}{where}"

    def applied(self, source: bytes) -> bytes:
        """The file with it. Lines keep their numbers."""
        start, end = self.span
        return source[:start] + self.after.encode() + b"\n" * source[start:end].count(b"\n") + source[end:]


class Places(ast.NodeVisitor):
    """All mutants of one file."""

    def __init__(self, file: Path) -> None:
        self.file, self.source = file, (ROOT / file).read_bytes()
        self.lines = [0]
        for line in self.source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.found: list[Mutant] = []
        self.visit(ast.parse(self.source))

    def _start(self, node: ast.AST) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.AST) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset

    def _add(self, line: int, span: Span, after: str) -> None:
        text = self.source.splitlines()[line - 1].decode().strip()
        mutant = Mutant(self.file, line, span, self.source[slice(*span)].decode(), after, text)
        try:
            compile(mutant.applied(self.source), self.file.name, "exec")
        except SyntaxError:
            return
        self.found.append(mutant)

    def _swap(self, left: ast.AST, right: ast.AST, op: ast.AST) -> None:
        """Another operator between two operands."""
        if type(op) not in SWAPS:
            return
        pattern, after = SWAPS[type(op)]
        start = self._end(left)
        between = self.source[start : self._start(right)]
        found = re.search(rb"(?<!\w)" + pattern.encode() + rb"(?!\w)", between)
        if found is not None:
            self._add(right.lineno, (start + found.start(), start + found.end()), after)

    def generic_visit(self, node: ast.AST) -> None:
        """Leave out annotations, wherever they are."""
        for name, field in ast.iter_fields(node):
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST) and name not in (
                    "annotation",
                    "returns",
                    "decorator_list",
                    "type_params",
                ):
                    self.visit(child)

    def visit(self, node: ast.AST) -> None:
        """Note what can be changed in a node, and look into it."""
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom) or getattr(node, "name", "") in APART:
            return
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Module | ast.ClassDef):
            # Of what they consist of, what runs: functions and classes. Else there are declarations and names alone.
            for child in node.body:
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If):
                    self.visit(child)
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, STATEMENTS) and not _binds_names_alone(node):
            self._add(node.lineno, (self._start(node), self._end(node)), "pass")
        if isinstance(node, ast.Compare):
            for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                self._swap(left, right, op)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                self._swap(left, right, node.op)
        elif isinstance(node, ast.BinOp):
            self._swap(node.left, node.right, node.op)
        elif isinstance(node, ast.AugAssign):
            self._swap(node.target, node.value, node.op)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._add(node.lineno, (self._start(node), self._start(node.operand)), "")
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0, 1):
            self._add(node.lineno, (self._start(node), self._end(node)), str(node.value + 1))
        self.generic_visit(node)


def _binds_names_alone(node: ast.AST) -> bool:
    """Whether it is an assignment to names, and to no attribute or item."""
    if not isinstance(node, ast.Assign):
        return False
    places = [place for target in node.targets for place in getattr(target, "elts", [target])]
    return all(isinstance(place, ast.Name) for place in places)


def draw(seed: int = SEED, count: int = DRAWN) -> list[Mutant]:
    """So many mutants, a file as likely as it is long."""
    rng = random.Random(seed)
    places = [Places(file.relative_to(ROOT)) for file in sorted((ROOT / CORE).rglob("*.py"))]
    sizes = [len(one.source) if one.found else 0 for one in places]
    drawn: dict[Mutant, None] = {}
    while len(drawn) < min(count, sum(len(one.found) for one in places)):
        drawn[rng.choice(rng.choices(places, sizes)[0].found)] = None
    return list(drawn)


def run(folder: Path, stage: Sequence[str], seconds: float) -> str | None:
    """Run tests in a copy. Returns what failed, or None."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *stage]
    env = {**os.environ, **HOW_MANY, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    child = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             start_new_session=True)  # fmt: skip
    try:
        said, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return f"hangs in {stage[0]}"
    if child.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    return found[1] if found else f"{stage[0]} ended with {child.returncode}: {said.strip()[-200:]}"


def look_at(mutant: Mutant | None, limits: Sequence[float]) -> tuple[str | None, list[float]]:
    """Run the stages on a mutant, or on none. Returns what has failed, and the seconds that each stage took."""
    took: list[float] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("asyncsched", "tests"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / part, folder)
        if mutant is not None:
            path = folder / mutant.file
            path.write_bytes(mutant.applied(path.read_bytes()))
        for stage, most in zip(STAGES, limits, strict=False):
            began = time.monotonic()
            if (told := run(folder, stage, most)) is not None:
                return told, took
            took.append(time.monotonic() - began)
    return None, took


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(prog="python -m tests.core.mutants")
    parser.add_argument("--list", action="store_true", help="the mutants, and no more")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="these of them")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--stages", type=int, default=len(STAGES), help="so many of the first: 1 is some of tests/core")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=DRAWN)
    given = parser.parse_args()
    drawn = dict(enumerate(draw(given.seed, given.count)))
    drawn = {number: drawn[number] for number in given.only or drawn}
    if given.list:
        print("\n".join(f"{number:3} {mutant}" for number, mutant in drawn.items()))
        return
    told, took = look_at(None, [3600] * given.stages)
    if told is not None:
        sys.exit(f"without any mutant it fails: {told}")
    limits = [30 + PATIENCE * seconds for seconds in took]
    killed = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for (number, mutant), (told, _) in zip(
            drawn.items(), pool.map(lambda one: look_at(one, limits), drawn.values()), strict=True
        ):
            killed += told is not None
            print(f"{number:3} {mutant}\n    {'SURVIVED' if told is None else 'killed by ' + told}", flush=True)
    print(f"{killed} of {len(drawn)} killed, {len(drawn) - killed} survived")


if __name__ == "__main__":
    main()

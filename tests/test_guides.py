"""The guides, a README.md in each room: their programs run, their links lead somewhere, none is too long to be read."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim

pytestmark = pytest.mark.usefixtures("may_block")
ROOT = Path(__file__).parents[1]
GUIDES = [*sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("asyncsched/*/README.md")), "tests"]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("asyncsched/*/README.md"), *ROOT.glob(".github/*.md")]
LONGEST = 250
_FENCE = re.compile(r"^```(\w*) ?(.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass
class Block:
    """A block of Python: the code, and what it needs that may not be installed, as in "```python torch"."""

    code: str
    needs: list[str]


def blocks(page: Path) -> list[Block]:
    return [
        Block(code, needs.split()) for language, needs, code in _FENCE.findall(page.read_text()) if language == "python"
    ]


def said(code: str) -> list[str]:
    """What a program says that it prints: in comments behind `print`, but for "such as ..."; or in some at its end."""
    at_the_end = re.search(r"((?:^# .*\n)+)\Z", code, re.MULTILINE)
    lines = at_the_end[1].splitlines() if at_the_end else []
    return [line[2:] for line in lines] + re.findall(r"^ *print\(.*\)  # (?!such as|without)(.*)$", code, re.MULTILINE)


@pytest.mark.parametrize("room", GUIDES)
def test_a_guide_begins_with_a_program_that_prints_what_it_says(room: str, tmp_path: Path) -> None:
    program = blocks(ROOT / room / "README.md")[0]
    for module in program.needs:
        pytest.importorskip(module)
    command = [sys.executable, "-W", "error", "-c", program.code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert said(program.code)
    assert set(said(program.code)) <= set(done.stdout.splitlines())


@pytest.mark.parametrize("room", GUIDES)
async def test_the_cells_of_a_guide_run_in_their_order(
    room: str, s: asc.Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"asc": asc, "np": np, "nn": nn, "optim": optim, "asyncio": asyncio, "Path": Path, "s": s}
    exec(BEFORE.get(room, ""), names)
    for cell in blocks(ROOT / room / "README.md")[1:]:
        if all(map(_is_there, cell.needs)):
            compiled = compile(cell.code, f"{room}/README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if inspect.iscoroutine(waiting := eval(compiled, names)):
                await waiting
            assert set(said(cell.code)) <= set(capsys.readouterr().out.splitlines())
    names.clear()


# What the cells of a guide find there.
BEFORE: dict[str, str] = {}


def _is_there(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("room", GUIDES)
def test_a_guide_is_short_enough_to_be_read(room: str) -> None:
    assert len((ROOT / room / "README.md").read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text()), target


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

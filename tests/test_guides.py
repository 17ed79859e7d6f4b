"""The guides, a README.md in each room: their programs run, their links lead somewhere, none is too long to be read."""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched.flow.pipeline.pipeline import Pipeline
from asyncsched.tensors import functions
from asyncsched.testing import lifespan

pytestmark = pytest.mark.usefixtures("may_block")
ROOT = Path(__file__).parents[1]
GUIDES = [*sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("asyncsched/*/README.md")), "tests"]
MORE = [*sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("asyncsched/*/[a-z]*.md"))]  # pages of a room
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("asyncsched/*/*.md"), *ROOT.glob(".github/*.md")]
LONGEST = 250
_FENCE = re.compile(r"^(?:<!-- needs: ([^\n]*) -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass
class Block:
    """A block of Python: the code, and what it needs that may not be installed, by "<!-- needs: torch -->" above it."""

    code: str
    needs: list[str]


def blocks(page: Path) -> list[Block]:
    return [
        Block(code, needs.split()) for needs, language, code in _FENCE.findall(page.read_text()) if language == "python"
    ]


def said(code: str) -> list[str]:
    """What a program says that it prints: in comments behind `print`, but for "such as ..."; or in some at its end."""
    at_the_end = re.search(r"((?:^# .*\n)+)\Z", code, re.MULTILINE)
    lines = at_the_end[1].splitlines() if at_the_end else []
    return [line[2:] for line in lines] + re.findall(r"^ *print\(.*\)  # (?!such as|without)(.*)$", code, re.MULTILINE)


# In one process of their own, since starting it costs more than most of them.
IN_TURN = """
import json, sys, traceback
for room, code in json.load(sys.stdin).items():
    for file in (sys.stdout, sys.stderr):
        print("#####", room, file=file, flush=True)
    try:
        exec(compile(code, room, "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
"""


@functools.cache
def first_programs_print() -> tuple[dict[str, str], dict[str, str]]:
    """By room, what the programs that guides begin with print, and what they say on the standard error."""
    programs = {room: blocks(ROOT / room / "README.md")[0] for room in GUIDES}
    given = json.dumps({room: program.code for room, program in programs.items() if all(map(_is_there, program.needs))})
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "error", "-c", IN_TURN]
        done = subprocess.run(command, input=given, cwd=folder, capture_output=True, text=True, check=True)
    printed, errors = [re.split(r"^##### (.*)\n", text, flags=re.M)[1:] for text in (done.stdout, done.stderr)]
    return dict(zip(printed[::2], printed[1::2], strict=True)), dict(zip(errors[::2], errors[1::2], strict=True))


@pytest.mark.parametrize("room", GUIDES)
def test_a_guide_begins_with_a_program_that_prints_what_it_says(room: str) -> None:
    program = blocks(ROOT / room / "README.md")[0]
    for module in program.needs:
        pytest.importorskip(module)
    printed, errors = first_programs_print()
    assert errors[room] == ""
    assert said(program.code)
    assert set(said(program.code)) <= set(printed[room].splitlines())


@pytest.mark.parametrize("page", [*[f"{room}/README.md" for room in GUIDES], *MORE])
async def test_the_cells_of_a_guide_run_in_their_order(
    page: str, s: asc.Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"asc": asc, "np": np, "nn": nn, "optim": optim, "asyncio": asyncio, "Path": Path, "s": s}
    names["__name__"] = "__main__"  # frameworks look for the module of a handler
    for cell in blocks(ROOT / page)[page not in MORE :]:
        if all(map(_is_there, cell.needs)):
            await run(cell, names)
            assert set(said(cell.code)) <= set(capsys.readouterr().out.splitlines())
    names.clear()


async def run(cell: Block, names: dict[str, Any]) -> None:
    """Run a cell, as a notebook does: it may await, and its names stay."""
    compiled = compile(cell.code, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if inspect.iscoroutine(waiting := eval(compiled, names)):
        await waiting


def needing(room: str, *needs: str) -> list[Block]:
    return [block for block in blocks(ROOT / room / "README.md") if block.needs == [*needs]]


async def test_the_guests_of_the_guide_train(s: asc.Scheduler) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    names: dict[str, Any] = {"asc": asc, "np": np, "s": s}
    for cell in needing("asyncsched/devices", "torch"):
        await run(cell, names)
    assert all(names["cost"].known(name) for name in ("forward", "backward", "move"))
    assert repr(names["cost"]).count(" bytes") == 3
    assert isinstance(names["model"], torch.nn.Module)
    names.clear()


async def test_the_server_of_the_guide_answers() -> None:
    pytest.importorskip("fastapi", reason="asyncsched[test]")
    httpx = pytest.importorskip("httpx", reason="asyncsched[test]")
    names: dict[str, Any] = {"asc": asc, "np": np}
    (cell,) = [cell for cell in needing("asyncsched/serving") if "class Text" in cell.code]
    declared = cell.code.partition("\n\nasync with")[0].replace('"64 KiB", wait=2', '"2 GiB", wait=0')
    server, stream = needing("asyncsched/serving", "fastapi")
    for cell in (server, Block(declared, []), stream):
        await run(cell, names)
    async with (
        lifespan(names["app"]) as started,
        httpx.AsyncClient(transport=httpx.ASGITransport(started), base_url="http://test") as client,
    ):
        answer = await client.post("/predict", json=[0.0, 2.0, 1.0])
        refused = await client.post("/predict", json=[0.0])
        # There is room for one text at a time, and no patience.
        texts = [client.get("/tokens", params={"prompt": 40, "length": 200}) for _ in range(2)]
        first, second = sorted(await asyncio.gather(*texts), key=lambda text: text.status_code)
        none = await client.get("/tokens", params={"prompt": 40, "length": 0})
    assert none.text == "data: end\n\n"
    assert first.text == 199 * "data: token\n\n" + "data: end\n\n"
    assert (second.status_code, int(second.headers["retry-after"]) >= 1) == (503, True)
    assert (answer.status_code, answer.json()) == (200, {"class": 1})
    assert (refused.status_code, refused.json()["detail"]) == (422, "A row has 3 numbers, not 1.")


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    conftest, tests = [block.code for block in needing("asyncsched/observe", "conftest.py")]
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_mine.py").write_text(f"import pytest\nimport numpy as np\n{tests}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "error"]
    command += [
        "-p",
        "no:hypothesispytest",
        "--asyncio-mode",
        "auto",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
    ]
    there = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True, check=False)
    assert "101 passed" in done.stdout, done.stdout


async def test_a_checkpoint_of_the_guide_is_gone_on_from(
    s: asc.Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("safetensors", reason="asyncsched[test]")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"asc": asc, "np": np, "nn": nn, "optim": optim, "Path": Path, "s": s}
    names["model"] = nn.Linear(3, 2, rng=0)
    first = await names["model"].state_dict()["weight"].numpy()
    for _ in range(2):  # a first run saves, the second goes on from there
        for cell in needing("asyncsched/nn", "safetensors"):
            await run(cell, names)
        found = await names["model"].state_dict()["weight"].numpy()
        assert (found == first).all()
        names["model"] = nn.Linear(3, 2, rng=1)
    names.clear()


def _is_there(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("page", [*[f"{room}/README.md" for room in [*GUIDES, "bench", "demos"]], *MORE])
def test_a_guide_is_short_enough_to_be_read(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= LONGEST


def test_the_tables_of_guides_are_whole() -> None:
    """Stages of pipelines, instruments, and functions that NumPy lacks."""
    stages = {name for name, method in vars(Pipeline).items() if not name.startswith("_") and callable(method)}
    stages -= {"open", "statistics", "state_dict", "load_state_dict"}
    kind = asc.observe.Instrument
    instruments = {
        name for name in asc.observe.__all__ if kind in getattr(getattr(asc.observe, name), "__mro__", ())[1:]
    }
    for page, mark, names in (
        ("flow/pipelines.md", ".{}(", stages),
        ("observe/README.md", ".{}(", instruments),
        ("tensors/README.md", "`{}`", {name for name in functions.__all__ if not hasattr(np, name)}),
    ):
        rows = "".join(re.findall(r"^\|.*", (ROOT / "asyncsched" / page).read_text(), re.MULTILINE))
        assert [name for name in sorted(names) if mark.format(name) not in rows] == [], page


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

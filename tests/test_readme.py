"""The README: its example runs, it stays short, and its tables name all that there is."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_guides import ROOT, blocks, said

README = (ROOT / "README.md").read_text()


def test_the_example_prints_what_it_says():
    (program,) = blocks(ROOT / "README.md")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.code], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert [line.replace("device=cuda:0", "device=cpu") for line in done.stdout.splitlines()] == said(program.code)
    assert len(program.code.splitlines()) <= 15


def test_it_is_short():
    assert len(README.splitlines()) <= 200
    assert len(README.encode()) <= 10_000


def test_the_table_of_extras_is_whole():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = README.partition("| extra | brings |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}
    assert named == set(extras)


def test_the_table_of_demos_is_whole():
    demos = ROOT / "demos"
    table = (demos / "README.md").read_text().partition("| demo | what it shows |")[2].partition("\n\n")[0]
    named = {re.findall(r"`(.*?)`", line)[0] for line in table.splitlines()[2:]}
    programs = {path.name for path in demos.glob("*.py") if "__main__" in path.read_text()}
    assert named == programs | {path.relative_to(demos).as_posix() for path in demos.rglob("*.ipynb")}


@pytest.mark.parametrize("guide", sorted(ROOT.glob("asyncsched/*/README.md")), ids=lambda path: path.parent.name)
def test_it_leads_to_every_guide(guide: Path) -> None:
    assert f"({guide.relative_to(ROOT).as_posix()})" in README

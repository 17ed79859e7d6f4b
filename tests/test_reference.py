"""The reference: every page is made without a warning, and every link leads to a place that is there."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from asyncsched import __main__ as command
from asyncsched._reference import GUIDES


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.anchors |= {found["id"] or ""} if "id" in found else set()
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pdoc", reason="asyncsched[docs]")
    made = tmp_path_factory.mktemp("pages")
    build = [sys.executable, "-W", "error", "-m", "asyncsched", "docs", "--out", str(made)]
    done = subprocess.run(build, capture_output=True, text=True, check=False, timeout=110)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"open {made / 'index.html'}\n", "")
    return made


def test_every_link_leads_to_a_place(folder: Path) -> None:
    pages = {path: Page(path) for path in folder.rglob("*.html")}
    lost = []
    for path, page in pages.items():
        for link in page.links:
            if not re.match(r"https?:", link):
                target, _, anchor = link.partition("#")
                there = (path.parent / target).resolve() if target else path
                if there not in pages or (anchor and unquote(anchor) not in pages[there].anchors):
                    lost.append((path.name, link))
    assert not lost, lost


def test_each_guide_is_the_front_of_its_page_and_nothing_private_is_there(folder: Path) -> None:
    for name in GUIDES:
        assert (folder / f"{name.replace('.', '/')}.html").exists()
    assert "Tasks within bounds" in (folder / "asyncsched.html").read_text("utf-8")
    assert not [path.name for path in folder.rglob("*.html") if "```" in path.read_text("utf-8")]
    names = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.html")}
    assert not [name for name in names if re.search(r"/_|/(runtime|tensors|flow|ops)\b", name)]


def test_without_pdoc_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pdoc", None)
    with pytest.raises(SystemExit):
        command.main(["docs", "--out", "anywhere"])
    assert 'the reference needs pdoc: pip install "asyncsched[docs]"' in capsys.readouterr().err
    assert not Path("anywhere").exists()

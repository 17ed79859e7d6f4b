"""The guides and the reference of all public names, as pages with a search, made by pdoc.

A room's guide is the front of its page. This file adds two things that pdoc lacks: links between guides lead from page
to page, and the pages are dark if the reader's system is.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from tempfile import TemporaryDirectory
from typing import Final

HELP: Final = "the guides and the reference, with a search, in a browser"
PRINTS: Final = """\
Makes the pages, and serves them on this machine alone until Ctrl-C; or, with --out, writes them to a folder.
Needs pdoc: pip install "asyncsched[docs]".
"""
_PACKAGE: Final = Path(__file__).parent


def _of(room: str) -> tuple[str, ...]:
    """A room's guide, and its other pages, whose names are written small."""
    return f"{room}/README.md", *sorted(f"{room}/{page.name}" for page in (_PACKAGE / room).glob("[a-z]*.md"))


# The guides on each page: those of the rooms that users import; the first page has those of the others.
GUIDES: Final = {
    "asyncsched": ("README.md", *_of("flow"), *_of("tensors"), "ERRORS.md"),
    **{f"asyncsched.{room}": _of(room) for room in ("array_api", "cluster", "devices", "nn", "observe", "serving")},
}
_LINK: Final = re.compile(r'<a href="([^":#]*(?<!\.html))(#[^"]*)?">(.*?)</a>', re.DOTALL)  # but not links to its pages


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the pages there, and serve nothing")
    parser.add_argument("--port", type=int, default=8080, help="where they are served (%(default)s)")


def report(options: Namespace) -> str:
    """Write the pages, or serve them until they are interrupted. Returns what to print.

    Raises:
        ImportError: without pdoc.
    """
    if options.out is not None:
        write(options.out)
        return f"open {options.out / 'index.html'}"
    with TemporaryDirectory() as folder:
        write(Path(folder))
        handler = partial(SimpleHTTPRequestHandler, directory=folder)
        with ThreadingHTTPServer(("127.0.0.1", options.port), handler) as server, suppress(KeyboardInterrupt):
            print(f"http://127.0.0.1:{server.server_port}/asyncsched.html", file=sys.stderr)
            server.serve_forever()
    return ""


def write(folder: Path) -> None:
    """Write all pages to a folder.

    Raises:
        ImportError: without pdoc, or without a package that a public name needs.
    """
    try:
        import pdoc
        from pygments.formatters import HtmlFormatter
    except ImportError as missing:
        raise ImportError('the reference needs pdoc: pip install "asyncsched[docs]"') from missing
    modules = []
    for name, guides in GUIDES.items():
        module = import_module(name)
        module.__doc__ = "\n\n".join([module.__doc__ or "", *[f".. include:: {_PACKAGE / guide}" for guide in guides]])
        modules.append(module)
    _take_in({one for module in modules for name in module.__all__ if isinstance(one := getattr(module, name), type)})
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.pdoc("asyncsched", output_directory=folder)
    dark = _DARK + HtmlFormatter(style="github-dark").get_style_defs(".pdoc .pdoc-code")
    style = f"<style>{_STYLE} @media (prefers-color-scheme: dark) {{{dark}}}</style></head>"
    for page in folder.rglob("*.html"):
        text = page.read_text("utf-8").replace("</head>", style)
        page.write_text(_linked(text, page.relative_to(folder).as_posix()), "utf-8")


def _take_in(public: set[type]) -> None:
    """Make classes declare members that they inherit from private classes: otherwise pdoc would only name them."""
    for one in public:
        for base in one.__mro__:
            if base.__module__.startswith(f"{__package__}.") and base not in public:
                for name, member in vars(base).items():
                    if not name.startswith("_") and name not in vars(one):
                        setattr(one, name, member)
                own = vars(one).get("__annotations__", {})
                one.__annotations__ = vars(base).get("__annotations__", {}) | own


def _linked(text: str, page: str) -> str:
    """A page whose links to guides lead to their pages.

    Links that lead nowhere in the reference become plain words: those out of the package, and those to attributes
    without documentation of their own.
    """
    anchors = set(re.findall(r' id="([^"]+)"', text))
    pages = {guide: f"{name.replace('.', '/')}.html" for name, guides in GUIDES.items() for guide in guides}
    rooms = {dirname(guide) for guide, its in pages.items() if its == page}

    def link(found: re.Match[str]) -> str:
        target, anchor, words = found.groups()
        if not target:
            return found[0] if (anchor or "")[1:] in anchors else words
        guides = {normpath(join(room, target)) for room in rooms} & pages.keys()
        return (
            f'<a href="{relpath(pages[guides.pop()], dirname(page) or ".")}{anchor or ""}">{words}</a>'
            if guides
            else words
        )

    return _LINK.sub(link, text)


_STYLE: Final = """
.pdoc table {border-collapse: collapse}
.pdoc td, .pdoc th {padding: .3em .6em; border: 1px solid var(--accent2); text-align: left}
"""
_DARK: Final = """
:root {--pdoc-background: #16181d}
.pdoc {--text: #e3e6eb; --muted: #9aa4b2; --link: #7fb2ff; --link-hover: #a9ccff; --code: #20242c; --active: #5a4a12;
--accent: #2a2f39; --accent2: #464e5c; --nav-hover: rgba(255, 255, 255, .08); --name: #7fb2ff; --def: #7ee0a0;
--annotation: #8fd3c0}
"""

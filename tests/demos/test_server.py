"""The server demo: what it answers, and its page in a browser."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.thorough import thoroughly

from .browser import BROWSER, DRIVER, Browser, until
from .test_demos import ALONE, DEMOS, needs

pytestmark = needs("sklearn", "starlette", "uvicorn", "safetensors")
in_a_browser = pytest.mark.skipif(
    not (DRIVER and BROWSER), reason="needs Debian's packages chromium and chromium-driver"
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Server:
    def __init__(self, *options: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, str(DEMOS / "server.py"), "--port", str(port), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | ALONE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().endswith("Loading ...\n")
        self.said = self.process.stdout.readline()
        while self.process.poll() is None:  # it says so a moment before it listens
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.url + path, body, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("model") / "digits.safetensors"
    first = Server("--model", str(path))
    assert first.stop() == -signal.SIGTERM
    assert path.stat().st_size > 100_000
    found = Server("--model", str(path))
    assert found.said.partition(";")[0] == first.said.partition(";")[0]  # as accurate as when it was saved
    yield found
    assert found.stop() == -signal.SIGTERM


def digits() -> np.ndarray:
    """Rows of 64 pixels and a digit. scikit-learn would bring a second BLAS, whose threads other tests would count."""
    sklearn = find_spec("sklearn")
    assert sklearn is not None
    assert sklearn.origin is not None
    return np.loadtxt(Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", max_rows=50)


def test_digits_are_told(server: Server) -> None:
    assert float(server.said.split()[2].rstrip("%;")) > 95
    right = 0
    for *image, label in digits().tolist():
        status, body = server.ask("/predict", json.dumps({"pixels": image}).encode())
        assert status == 200
        found = json.loads(body)
        assert np.argmax(found["probabilities"]) == found["digit"]
        right += found["digit"] == label
    assert right >= 45


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"{}", 400),
        (b'{"pixels": [1, 2]}', 422),
        (b'{"pixels": "a"}', 400),
        (json.dumps({"pixels": [float("nan")] * 64}).encode(), 422),
        (b'{"pixels": ' + b"[" * 7000 + b"]" * 7000 + b"}", 400),
        (b'{"pixels": [1' + b"0" * 400 + b"]}", 400),
        (b" " * 20_000, 413),
    ],
)
def test_nonsense_is_refused(server: Server, body: bytes, status: int) -> None:
    assert server.ask("/predict", body)[0] == status


def test_the_stream_of_events(server: Server) -> None:
    with urllib.request.urlopen(f"{server.url}/live", timeout=30) as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        line = events.readline()
    state = json.loads(line.removeprefix(b"data: "))
    assert state["limit"] == 64 * 2**20
    assert state["queue"] == 0


@thoroughly
def test_load_fills_the_queue_and_more_is_refused(server: Server) -> None:
    with urllib.request.urlopen(f"{server.url}/load", b"", timeout=30) as lines:
        lines.readline()
        assert server.ask("/load", b"")[0] == 409
        heard = [json.loads(line) for line in lines][-1]
    assert heard.keys() >= {"200", "503"}  # and 504, where the machine is busy
    assert heard["200"] > 100
    assert heard["503"] > 100
    assert server.ask("/healthz")[0] == 200


def test_what_it_tells_of_itself(server: Server) -> None:
    assert [server.ask(path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3


@in_a_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [(390, 844), (1280, 800)], ids=["phone", "desktop"])
def test_the_page(server: Server, size: tuple[int, int], dark: bool, tmp_path: Path) -> None:
    with Browser(free_port(), *size, dark=dark) as browser:
        browser.open(server.url)
        until(lambda: browser.run("return document.getElementById('status').textContent") == "live")
        browser.run("document.getElementById('send').click()")
        until(lambda: browser.run("return !document.getElementById('send').disabled"))
        answers = browser.run("return document.getElementById('sent').textContent")
        assert {part.split(":")[0] for part in answers.split(", ")} >= {"200", "503"}
        assert browser.run("return Math.max(...charted.queue[0])") == 128
        assert browser.run("return charted.latency[1].some(p99 => p99 > 0)")
        assert browser.run("return document.querySelectorAll('svg polyline').length") == 5
        axes = browser.run("return document.getElementById('latency').innerText").split()
        assert {"30", "s", "ago", "now", "ms"} <= set(axes)
        assert browser.run("return document.documentElement.scrollWidth") <= size[0]
        assert browser.run("return matchMedia('(prefers-color-scheme: dark)').matches") == dark
        loaded = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
        assert all(name.startswith(server.url) for name in loaded)
        browser.run(DRAW_A_LINE)
        until(lambda: browser.run("return document.getElementById('digit').textContent") in set("0123456789"))
        path = Path(os.environ.get("ASYNCSCHED_SCREENSHOTS", tmp_path)) / f"{size[0]}-{'dark' if dark else 'light'}.png"
        browser.screenshot(path)
        assert path.stat().st_size > 10_000


DRAW_A_LINE = """
const pad = document.getElementById("pad"), box = pad.getBoundingClientRect();
const send = (type, row) => pad.dispatchEvent(new PointerEvent(type, {
  pointerId: 1, buttons: 1, clientX: box.left + box.width * .55, clientY: box.top + box.height * row, bubbles: true,
}));
pad.setPointerCapture = () => {};
send("pointerdown", .06);
for (let row = .06; row < .95; row += .05) send("pointermove", row);
send("pointerup", .94);
"""

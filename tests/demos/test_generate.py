"""The server of texts: what OpenAI's clients get of it, how many have room, and its page in a browser."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .browser import BROWSER, DRIVER, Browser, until
from .test_demos import ALONE, DEMOS, needs
from .test_server import free_port

pytestmark = needs("starlette", "uvicorn", "safetensors", "tqdm")
CACHE = 4 * 2 * 2 * 256 * 96  # bytes


class Server:
    def __init__(self, demo: str, *options: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, str(DEMOS / f"{demo}.py"), "--port", str(port), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | ALONE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().endswith("Loading ...\n")
        assert self.process.stdout.readline() == f"open {self.url}\n"
        until(lambda: self.live()["texts"] == 0)

    def ask(self, **asked: Any) -> Any:
        return urllib.request.urlopen(f"{self.url}/v1/completions", json.dumps(asked).encode(), timeout=60)

    def whole(self, **asked: Any) -> Any:
        with self.ask(**asked) as answer:
            return json.load(answer)

    def refusal(self, body: bytes) -> tuple[int, Any]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{self.url}/v1/completions", body, timeout=60)
        with refused.value as error:
            return error.code, json.load(error)

    def live(self) -> Any:
        with urllib.request.urlopen(f"{self.url}/live", timeout=30) as events:
            return json.loads(events.readline().removeprefix(b"data: "))

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=30)
        assert self.process.returncode == -signal.SIGTERM


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One whose model was loaded, with room for four caches. Nobody trains it for long."""
    path = str(tmp_path_factory.mktemp("model") / "text.safetensors")
    Server("generate", "--steps", "2", "--model", path).stop()
    found = Server("generate", "--model", path, "--caches", str(4.5 * CACHE / 2**20))
    yield found
    found.stop()


def events(answer: Any) -> list[Any]:
    """What a stream told, without the mark at its end."""
    *told, end = [line for line in answer.read().decode().split("\n\n") if line]
    assert end == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in told]


def test_a_stream_tells_the_characters_of_the_whole(server: Server) -> None:
    asked = {"prompt": "A class ", "max_tokens": 20, "n": 3, "seed": 5}
    whole = server.whole(**asked)
    with server.ask(**asked, stream=True, stream_options={"include_usage": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *told, usage = events(answer)
    assert usage["usage"] == whole["usage"] == {"prompt_tokens": 8, "completion_tokens": 60, "total_tokens": 68}
    assert len(told) == 21
    for i, choice in enumerate(whole["choices"]):
        assert len(choice["text"]) == 20
        assert "".join([part["choices"][i]["text"] for part in told]) == choice["text"]
        assert [part["choices"][i]["finish_reason"] for part in told] == [None] * 20 + ["length"]
    assert len({choice["text"] for choice in whole["choices"]}) == 3


def test_texts_are_the_same_alone_and_beside_others(server: Server) -> None:
    asked = {"prompt": "In a loop", "max_tokens": 40, "temperature": 0}
    alone = server.whole(**asked)["choices"][0]["text"]
    with ThreadPoolExecutor(4) as clients:
        beside = [clients.submit(server.whole, **{**asked, "prompt": "x" * i + "In a loop"}) for i in range(4)]
        assert beside[0].result()["choices"][0]["text"] == alone
        for answer in beside:
            assert answer.result()["usage"]["completion_tokens"] == 40


def test_who_leaves_gives_its_room_to_others(server: Server) -> None:
    asked = {"prompt": "x", "max_tokens": 255, "n": 4, "stream": True}
    with server.ask(**asked) as first:
        first.readline()
        assert server.live() == {"bytes": 4 * CACHE, "limit": int(4.5 * CACHE), "texts": 4, "waiting": 0}
    with server.ask(**asked) as second:
        assert len(events(second)) == 256
    until(lambda: server.live()["texts"] == 0)


def test_for_whom_there_never_is_room_is_told(server: Server) -> None:
    assert server.refusal(json.dumps({"prompt": "x", "n": 5}).encode())[0] == 413


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": "x", "max_tokens": 256},
        {"prompt": "x", "max_tokens": 0},
        {"prompt": "x", "max_tokens": "many"},
        {"prompt": "x" * 300},
        {"prompt": ["a", "b"]},
        {"prompt": "x", "temperature": 2.5},
        {"prompt": "x", "temperature": float("nan")},
        {"prompt": "x", "n": 65},
        {"prompt": "x", "stop": "."},
        {"prompt": "x", "seed": -1},
        {},
        [],
    ],
)
def test_nonsense_is_refused(server: Server, asked: Any) -> None:
    status, told = server.refusal(json.dumps(asked).encode())
    assert status == 400
    assert told["error"]["message"] == told["detail"]


def test_what_is_no_json_is_refused(server: Server) -> None:
    assert [server.refusal(body)[0] for body in (b"{", b"[" * 100_000)] == [400, 400]


@needs("openai")
def test_openais_client_is_served(server: Server) -> None:
    from openai import BadRequestError, OpenAI

    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    asked: dict[str, Any] = {"model": "text", "prompt": "The ", "max_tokens": 9, "seed": 3}
    whole = client.completions.create(**asked)
    parts = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(parts) == whole.choices[0].text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 9
    with pytest.raises(BadRequestError, match="is not to be had here"):
        client.completions.create(**asked, stop=".")


@needs("torch")
def test_a_pytorch_module_serves_as_well() -> None:
    server = Server("generate_guest")
    asked = {"prompt": "The ", "max_tokens": 9, "n": 2, "seed": 3}
    whole = server.whole(**asked)
    with server.ask(**asked, stream=True) as answer:
        told = events(answer)
    assert ["".join([part["choices"][i]["text"] for part in told]) for i in (0, 1)] == [
        choice["text"] for choice in whole["choices"]
    ]
    server.stop()


@pytest.mark.skipif(not (DRIVER and BROWSER), reason="needs Debian's packages chromium and chromium-driver")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [(390, 844), (1280, 800)], ids=["phone", "desktop"])
def test_the_page(server: Server, size: tuple[int, int], dark: bool, tmp_path: Path) -> None:
    with Browser(free_port(), *size, dark=dark) as browser:
        browser.open(server.url)
        until(lambda: "0.0 of 1.7 MiB" in browser.run("return document.getElementById('status').textContent"))
        browser.run("document.querySelector('button[value=\"1\"]').click()")
        until(lambda: browser.run("return document.querySelector('article').textContent.length") == 256)
        browser.run("document.querySelector('button[value=\"12\"]').click()")
        until(lambda: browser.run("return document.querySelector('article').textContent") == "413")
        assert browser.run("return document.documentElement.scrollWidth") <= size[0]
        assert browser.run("return matchMedia('(prefers-color-scheme: dark)').matches") == dark
        path = Path(os.environ.get("ASYNCSCHED_SCREENSHOTS", tmp_path)) / f"texts-{size[0]}-{dark}.png"
        browser.screenshot(path)
        assert path.stat().st_size > 10_000

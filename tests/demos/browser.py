"""Chromium without a window, by the WebDriver protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

DRIVER, BROWSER = shutil.which("chromedriver"), shutil.which("chromium")


class Browser:
    """One page, in a window of the given size in CSS pixels, light or dark."""

    def __init__(self, port: int, width: int, height: int, *, dark: bool) -> None:
        assert DRIVER is not None
        self._process = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL)
        self._base = f"http://127.0.0.1:{port}"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
        phone = {"mobileEmulation": {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 2}}}
        chrome = {
            "binary": BROWSER,
            "args": [*options, f"--window-size={width},{height}"],
            **(phone if width < 500 else {}),
        }
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": chrome}}}
        until(lambda: self._call("GET", "/status")["ready"])
        self._base += f"/session/{self._call('POST', '/session', wanted)['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self._call("DELETE", "")
        self._process.terminate()
        self._process.wait()

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        """What a function body in JavaScript returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]


def until(holds: Any, seconds: float = 60) -> None:
    """Wait until something holds; what cannot be reached does not hold yet."""
    end = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except urllib.error.URLError:
            pass
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)

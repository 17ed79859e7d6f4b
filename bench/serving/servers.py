"""The processes of `bench.serving`: servers on ports of their own, and their load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

from bench.harness.environments import python_for
from bench.harness.rows import OURS, ROOT, Result, Row, Target, Unavailable
from bench.harness.turns import Turns

from .load import PROGRAM, connect, request, run

CONNECTIONS = 64  # of the clients at capacity: two batches
LIMIT = 72  # requests in progress
MEMORY = "1 GiB"
DRAIN = 10.0  # seconds
Found = dict[str, Any]


def beside(key: str, title: str, unit: str, of: str, to: float, value: float, target: Target, note: str = "") -> Result:
    """A row of one value beside another."""
    return Row(key, title, unit, targets={OURS: target}).result({of: [to], OURS: [value]}, notes={OURS: note})


def counted(
    key: str, title: str, value: float, why: str, note: str = "", *, most: float = 0, unit: str = "count"
) -> Result:
    """A row of one value, with a limit."""
    targets = {OURS: Target(most, why, absolute=True)}
    return Row(key, title, unit, targets=targets).result({OURS: [value]}, notes={OURS: note})


def with_litserve(kinds: Iterable[str], turns: Turns) -> tuple[list[str], dict[str, str]]:
    """These kinds of servers, and LitServe's; or why there is none of those."""
    try:
        python_for("litserve", install=turns.install)
    except Unavailable as error:
        return [*kinds], {"litserve": str(error)}
    return [*kinds, "litserve"], {}


class Server:
    """A server's process."""

    def __init__(self, kind: str, quick: bool, *, app: str = "bench.serving.app", **options: Any) -> None:
        self.port = free_port()
        width = 256 if quick else 8192  # two matrices of 256 MiB: some milliseconds for a row
        more = {"max_bytes": MEMORY, "max_requests": LIMIT, "drain_timeout": DRAIN} if kind == "asyncsched" else {}
        given = json.dumps({"width": width, **more, **options})
        ours = [app, kind, str(self.port), given]
        peer = ["bench.serving.litserve", app, str(self.port), given]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        quiet = subprocess.DEVNULL if kind == "litserve" else None
        self.process = subprocess.Popen(
            [python_for("litserve"), "-m", *peer] if kind == "litserve" else [sys.executable, "-m", *ours],
            cwd=ROOT, env=environment, stdout=quiet, stderr=quiet, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Server:
        until = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError):
                if self.ask(request())[0] == 200:  # this warms it up, too
                    return self
            time.sleep(0.1)
        self.process.kill()
        raise RuntimeError("the server did not start")

    def __exit__(self, *error: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(DRAIN + 5)
        except subprocess.TimeoutExpired:
            self.process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # processes that a server leaves behind

    def load(self, **options: Any) -> subprocess.Popen[str]:
        """A load generator's process."""
        spec = json.dumps({"port": self.port, **options})
        return subprocess.Popen([*PROGRAM, spec], cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def ask(self, data: bytes) -> tuple[int, str]:
        """One request on a connection of its own: the status and the body."""

        async def main() -> tuple[int, str]:
            connection = await connect(self.port)
            status = await asyncio.wait_for(connection.ask(data), 60)
            connection.transport.abort()
            return status, connection.text.partition(b"\r\n\r\n")[2].decode()

        found: tuple[int, str] = run(main)
        return found

    def stats(self) -> Found:
        found: Found = json.loads(self.ask(request("/stats", b"", method="GET"))[1])
        return found


def answer(load: subprocess.Popen[str]) -> Found:
    """The result of a load generator, when it is done."""
    found: Found = json.loads(load.communicate()[0])
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port

"""A contestant's process, from outside: see `bench.harness.contestant` for what runs in it."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from typing import Any

from bench.libraries import LIBRARIES

from .environments import python_for
from .rows import ROOT, Unavailable, Who

PATIENCE = 600.0  # most seconds for an answer
FORCED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


class Child:
    """Answers one question at a time. It runs this processor's BLAS kernels, whatever the environment forces."""

    def __init__(self, contestant: str, quick: bool, *, install: bool) -> None:
        who = Who.of(contestant)
        python = python_for("numba" if "numba" in who.flags else LIBRARIES[who.library].needs, install=install)
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed by `close`
        environment = {name: value for name, value in os.environ.items() if name not in FORCED} | {**who.environment}
        self._process = subprocess.Popen(
            [python, "-m", "bench.harness.contestant", contestant, *(["--quick"] if quick else [])],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
            preexec_fn=None if who.processors is None else partial(_keep_to, who.processors),
        )  # fmt: skip
        try:
            self.facts = str(self._ask({"facts": True}))
        except Unavailable:
            self.close()
            raise

    def get_ready(self, work: str) -> None:
        """Prepare a work. Raises Unavailable if it cannot, as `work` does."""
        self._ask({"ready": work})

    def work(self, work: str) -> tuple[float, str]:
        """A round of a work: the seconds of one operation, or bytes; and a note."""
        value, note = self._ask({"work": work})
        return float(value), note

    def forget(self) -> None:
        """Drop the prepared works."""
        self._ask({"forget": True})

    def _ask(self, question: Mapping[str, object]) -> Any:
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        try:
            print(json.dumps(question), file=questions, flush=True)
        except BrokenPipeError:
            raise Unavailable(self._last_words()) from None
        with selectors.DefaultSelector() as ready:
            ready.register(answers, selectors.EVENT_READ)
            if not ready.select(PATIENCE):
                self._process.kill()
                self._process.wait()
                raise Unavailable(f"no answer in {PATIENCE:.0f} s")
        line = answers.readline()
        if not line:
            raise Unavailable(self._last_words())
        answer = json.loads(line)
        if "error" in answer:
            raise Unavailable(answer["error"])
        return answer["value"]

    def _last_words(self) -> str:
        status = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"its process ended ({status})")

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Tell it to end, and see that it does."""
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._said.close()


def _keep_to(processors: int) -> None:
    """In the child, before anything counts its processors."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:processors])

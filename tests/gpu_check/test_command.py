"""`python -m asyncsched gpu-check`: whatever ends a program, or the command, what was found stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from email.message import Message
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from asyncsched.__main__ import main
from asyncsched.devices.cuda.device import usable
from asyncsched.gpu_check.command import SECTIONS, Check, entries
from asyncsched.gpu_check.entries import Entry
from tests.gpu.conftest import NONE
from tests.thorough import thoroughly, usually
from tests.waiting import Clock

ROOT = Path(__file__).parents[2]


def entry(code: str, name: str = "program", limit: float = 60.0, group: str = "rate") -> Entry:
    return Entry(group, name, [sys.executable, "-c", code], limit)


def ran(tmp_path: Path, *programs: Entry, minutes: float = 5.0) -> tuple[list[dict[str, Any]], str]:
    """What the file has of these programs, and the page."""
    check = Check(programs, tmp_path / "out.json", minutes)
    check.run(tmp_path)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["finished"]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.json"]
    return found["entries"], check.page()


RAISES = """
import sys, traceback
try:
    1 / 0
except ArithmeticError:
    traceback.print_exc()
    sys.exit(2)
"""
ENDS = {
    "asserted": ("assert not 'off by 3'", "missed", "AssertionError"),
    "not caught": ("1 / 0", "crashed", "ZeroDivisionError: division by zero"),
    "passed": ("print('all is well')", "passed", "all is well"),
    "silent": ("pass", "passed", ""),
    "missed": ("import sys; print('2 failed'); sys.exit(1)", "missed", "2 failed"),
    "skipped": ("import sys; print('there is one device'); sys.exit(77)", "skipped", "there is one device"),
    "raised": (RAISES, "crashed", "ZeroDivisionError: division by zero"),
    "left": ("import os; print('half of it', flush=True); os._exit(3)", "crashed", "half of it"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "crashed", "killed by SIGKILL"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "crashed", "killed by SIGSEGV"),
}  # fmt: skip


def test_each_end_is_told_and_the_next_program_runs(tmp_path):
    found, page = ran(tmp_path, *[entry(code, name) for name, (code, *_) in ENDS.items()])
    assert {one["name"]: (one["state"], one["why"]) for one in found} == {
        name: (state, why) for name, (_, state, why) in ENDS.items()
    }
    assert all(one["seconds"] > 0 for one in found)
    by_name = {one["name"]: one for one in found}
    assert by_name["raised"]["traceback"].startswith("Traceback (most recent call last)")
    assert by_name["raised"]["traceback"].endswith("ZeroDivisionError: division by zero")
    assert "Fatal Python error: Segmentation fault" in by_name["segmentation fault"]["traceback"]
    assert page.startswith("2 passed, 2 missed, 5 crashed, 1 skipped, in ")
    assert "  crashed      killed: killed by SIGKILL" in page
    assert page.endswith(f"all of it: {tmp_path / 'out.json'}\nsend it to whoever gave you this copy")


def test_the_page_says_where_a_distributor_wants_the_file(tmp_path, monkeypatch):
    told = Message()
    told["Project-URL"] = "Source, https://example.org/source"
    told["Project-URL"] = "Issues, https://example.org/issues"
    monkeypatch.setattr("asyncsched.gpu_check.command.metadata", lambda name: told)
    _, page = ran(tmp_path, entry("pass"))
    assert page.endswith("\nsend it to https://example.org/issues")


FAILS = """
import os, sys
print("x" * 50_000)
print({name: value for name, value in os.environ.items() if name.startswith("CUDA_L")}, sys.argv[1:])
sys.exit(1)
"""


def test_a_probe_that_fails_is_run_once_more_in_each_way_that_says_more(tmp_path, monkeypatch):
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "watched by $1"; shift 2; exec "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    found, page = ran(
        tmp_path, entry(FAILS, "first", group="probe"), entry("pass", "second", group="probe"), entry("pass", "last")
    )
    assert [(one["group"], one["name"], one["state"]) for one in found] == [
        ("probe", "first", "missed"), ("probe", "second", "passed"),
        ("again", "first_blocking", "missed"), ("again", "first_memcheck", "missed"), ("rate", "last", "passed"),
    ]  # fmt: skip
    first, _, blocking, memcheck, _ = [one["output"] for one in found]
    assert first.endswith("{} []")
    assert len(first) == 20_000
    assert blocking.endswith("{'CUDA_LAUNCH_BLOCKING': '1', 'CUDA_LOG_FILE': 'stderr'} []")
    assert memcheck.startswith("watched by --track-stream-ordered-races\nx")
    assert memcheck.endswith("{} ['--blocks']")
    assert len(memcheck) > 50_000
    assert "again: 2 missed" in page


@pytest.mark.skipif(which("gdb") is None, reason="needs gdb")
def test_one_that_dies_of_a_signal_is_run_in_gdb_which_shows_its_stacks_in_c(tmp_path):
    found, _ = ran(tmp_path, entry("import ctypes; ctypes.string_at(0)", "dies", group="probe"))
    by_name = {one["name"]: one for one in found}
    assert by_name["dies"]["why"] == by_name["dies_blocking"]["why"] == "killed by SIGSEGV"
    assert "#0 " in by_name["dies_gdb"]["output"]
    assert "string_at" in by_name["dies_gdb"]["output"]


@pytest.fixture(params=["fake", pytest.param("card", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest, fake: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs find the fake CuPy; or the one that is there, on a card or in host memory."""
    if request.param == "fake":
        monkeypatch.setenv("PYTHONPATH", fake["PYTHONPATH"])
    elif not usable():
        pytest.skip(NONE)


SUM = "import os, signal, cupy; print(int((cupy.arange(10) + 1).sum().get()), flush=True); "


@pytest.mark.usefixtures("machine")
def test_what_raises_or_is_killed_at_work_on_a_card_costs_the_next_program_nothing(tmp_path):
    killed, raised, fine = [
        entry(SUM + what, name)
        for name, what in {
            "killed": "cupy.ones((1 << 20,)); os.kill(os.getpid(), signal.SIGKILL)",
            "raised": "cupy.cuda.runtime.setDevice(99)",
            "fine": "",
        }.items()
    ]
    ran(tmp_path, killed, raised, fine)
    assert (killed.state, killed.why, killed.output) == ("crashed", "killed by SIGKILL", "55")
    assert (raised.state, raised.output.splitlines()[0]) == ("crashed", "55")
    assert "cudaErrorInvalidDevice" in raised.traceback
    assert (fine.state, fine.output) == ("passed", "55")


FOREVER = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
def waits_for_ever():
    print(child.pid, flush=True)
    threading.Event().wait()
waits_for_ever()
"""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program that never ends all its time has passed once it has said so, however long that takes."""
    clock = Clock()

    class Process(subprocess.Popen[bytes]):
        said: Path | None = None

        def __init__(self, command: list[str], stdout: Any, **options: Any) -> None:
            self.said = Path(stdout.name) if FOREVER in command else None
            super().__init__(command, stdout=stdout, **options)

        def wait(self, timeout: float | None = None) -> int:
            said, self.said = self.said, None
            if said is None or timeout is None:
                return super().wait(timeout)
            while not said.stat().st_size:
                with suppress(subprocess.TimeoutExpired):
                    return super().wait(0.01)
            clock.passes(timeout)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr("subprocess.Popen", Process)
    monkeypatch.setattr("asyncsched.gpu_check.command.monotonic", clock)


@pytest.mark.usefixtures("hasty")
def test_what_never_ends_is_asked_where_it_is_and_killed_with_all_that_it_started(tmp_path):
    (stuck, after), page = ran(tmp_path, entry(FOREVER, "stuck", limit=20.0), entry("pass", "after"))
    assert (stuck["state"], stuck["why"]) == ("not through", "its time passed, 20 s")
    assert "  not through  stuck: its time passed, 20 s" in page
    assert "in waits_for_ever" in stuck["traceback"]
    while alive(int(stuck["output"].split()[0])):
        pass  # it was sent its signal, and ends when it gets a processor
    assert after["state"] == "passed"


LATE = """
import time, pytest

@pytest.mark.timeout(0.5)
def test_late():
    time.sleep(60)

def test_passes():
    pass
"""


@pytest.mark.parametrize(("more", "state"), [("", "not through"), ("def test_wrong():\n    assert not 1", "missed")])
def test_tests_that_exceed_their_own_time_are_not_through_unless_another_failed(tmp_path, more, state):
    file = tmp_path / "tests" / "test_late.py"
    file.parent.mkdir()
    file.write_text(f"{LATE}\n{more}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    (found,), _ = ran(tmp_path, Entry("test", "late", command, 60))
    assert (found["state"], found["why"].split(" in ")[0]) == (state, f"{2 if more else 1} failed, 1 passed")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("hasty")
def test_what_the_time_of_all_does_not_reach_is_skipped(tmp_path):
    programs = entry("pass", "first"), entry(FOREVER, "cut"), entry("pass", "never")
    last = entry("print('the end')", "after", group="after")
    (_, cut, never, end), _ = ran(tmp_path, *programs, last, minutes=0.5)
    assert (cut["state"], cut["why"]) == ("not through", "its time passed, 30 s")
    assert (end["state"], end["output"]) == ("passed", "the end")
    assert (never["state"], never["why"], never["seconds"]) == ("skipped", "no time left", 0)


def test_while_a_program_runs_the_file_says_that_it_crashed(tmp_path):
    look = f"print(open({str(tmp_path / 'out.json')!r}).read())"
    (looked, _), _ = ran(tmp_path, entry(look, "looks"), entry("pass", "after"))
    found = json.loads(looked["output"])
    assert not found["finished"]
    assert [(one["state"], one["why"]) for one in found["entries"]] == [
        ("crashed", "gpu-check itself ended while this ran"),
        ("skipped", "not reached"),
    ]


TELLS = """
import sys
from asyncsched.gpu_check.entries import Report
report = Report(__import__("pathlib").Path(sys.argv[1]))
report.tell("first kernel", 0.25, "s")
report.tell("text", "of some words")
report.tell("all of it", [1, 2])
open(report.folder / "facts", "a").write('{"name": "torn", "val')
"""


def test_what_was_told_stays_though_the_last_line_is_torn(tmp_path):
    tells = Entry("rate", "tells", [sys.executable, "-c", TELLS, str(tmp_path / "tells")], 60)
    (told,), page = ran(tmp_path, tells)
    assert told["facts"]["first kernel"] == {"value": 0.25, "unit": "s"}
    assert told["facts"]["all of it"]["value"] == [1, 2]
    assert "  tells: first kernel 250 ms; text of some words" in page


def row(cells: dict[str, Any], met: bool | None = None) -> dict[str, Any]:
    targets = {} if met is None else {"asyncsched": {"met": met, "measured": 2.5, "limit": 2.0}}
    return {"work": "a small add", "cells": cells, "targets": targets}


NUMBER = {"asyncsched": {"value": 3.0}}


def _kept(tmp_path: Path) -> str:
    """Where a benchmark keeps its results."""
    return str(tmp_path / "bench" / "gpu-card.json")


@pytest.mark.parametrize(
    ("rows", "state", "why"),
    [
        ([row(NUMBER, True)], "passed", ""),
        ([row(NUMBER, False)], "missed", "a small add, asyncsched: 2.5, and the target is 2"),
        (
            [row(NUMBER, False), row({"CuPy": {"error": "CUDARuntimeError: illegal"}})],
            "crashed",
            "a small add, CuPy: CUDARuntimeError: illegal",
        ),
        ([row({"memcheck": {"error": "not installed"}})], "skipped", "a small add, memcheck: not installed"),
    ],
)
def test_a_benchmark_is_judged_by_its_rows(tmp_path, rows, state, why):
    written = f"open({_kept(tmp_path)!r}, 'w').write({json.dumps({'rows': rows, 'quick': False})!r})"
    (found,), _ = ran(tmp_path, entry(written, "bench"))
    assert (found["state"], found["why"]) == (state, why)
    assert found["facts"]["measured"]["rows"] == rows


def test_one_that_is_killed_in_the_middle_keeps_its_rows(tmp_path):
    text = json.dumps({"rows": [row(NUMBER)], "quick": False})
    code = f"import os, signal; open({_kept(tmp_path)!r}, 'w').write({text!r}); os.kill(os.getpid(), signal.SIGKILL)"
    (found,), _ = ran(tmp_path, entry(code, "bench"))
    assert (found["state"], found["why"]) == ("crashed", "killed by SIGKILL")
    assert found["facts"]["measured"]["rows"] == [row(NUMBER)]


def command(out: Path, *options: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "asyncsched", "gpu-check", "--quick", "--out", str(out), *options]
    return subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)


def test_without_a_card_what_is_missing_is_said_once_and_nothing_runs(tmp_path, bare):
    run = command(tmp_path / "out.json", env=bare)
    assert run.returncode == 1, run.stderr
    assert run.stdout.startswith(f"{len(list(entries(quick=True)))} skipped, in ")
    assert "CuPy is not installed: pip install" in run.stdout
    assert 'all that it needs pip install -e ".[cuda12,test]"; ' in " ".join(run.stdout.split())
    found = json.loads((tmp_path / "out.json").read_text())
    assert {one["state"] for one in found["entries"]} == {"skipped"}
    assert {one["why"] for one in found["entries"]} == {found["entries"][0]["why"]}
    assert "packages" in found["entries"][0]["facts"]


def test_on_the_fake(tmp_path, fake):
    run = command(tmp_path / "out.json", "--only", "half_sums,described", env=fake)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert [(one["name"], one["state"]) for one in found["entries"]] == [
        ("machine", "passed"), ("described", "passed"), ("half_sums", "passed"),
    ]  # fmt: skip
    assert "cuda:0 Fake GPU, compute capability 9.0" in " ".join(run.stdout.split())  # where its lines end depends
    assert float(found["entries"][2]["facts"]["off by"]["value"]) <= 0.51
    assert [line.split()[2:] for line in run.stderr.splitlines()] == [
        ["passed", "machine"], ["passed", "described"], ["passed", "half_sums"],
    ]  # fmt: skip


@thoroughly
def test_a_benchs_section_runs_in_a_checkout(tmp_path, fake):
    run = command(tmp_path / "out.json", "--only", "gpu.copies,gpu.sanitize", env=fake)
    assert run.returncode == 0, run.stdout + run.stderr
    found = {one["name"]: one for one in json.loads((tmp_path / "out.json").read_text())["entries"]}
    (copies,) = found["gpu.copies"]["facts"]["measured"]["rows"]
    assert copies["cells"]["asyncsched"]["value"] > 0
    assert found["gpu.sanitize"]["state"] == "skipped"
    assert "compute-sanitizer: runs that are not clean, memcheck: no" in found["gpu.sanitize"]["why"]


@pytest.mark.gpu
def test_what_a_fault_leaves_does_not_fail_the_next_program(tmp_path):
    """And a file of the tests for a card runs by itself."""
    if not usable():
        pytest.skip(NONE)
    run = command(tmp_path / "out.json", "--only", "fault,half_sums,test_ends", env=dict(os.environ))
    assert run.returncode == 0, run.stdout + run.stderr
    found = {one["name"]: one for one in json.loads((tmp_path / "out.json").read_text())["entries"]}
    assert {one["state"] for one in found.values()} == {"passed"}
    assert "ILLEGAL" in found["fault"]["facts"]["told"]["value"].upper()
    assert " passed" in found["test_ends"]["why"]


@pytest.mark.parametrize("number", usually([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_ends_it_with_the_page(tmp_path, fake, number):
    out = tmp_path / "out.json"
    arguments = [sys.executable, "-m", "asyncsched", "gpu-check", "--out", str(out)]
    with subprocess.Popen(
        arguments, cwd=ROOT, env=fake, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the machine is known
        process.send_signal(number)
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert " passed" in text.splitlines()[0]  # the first, and perhaps what ended before the signal came
    assert ": interrupted" in text
    found = json.loads(out.read_text())
    assert found["finished"]
    ended = [one for one in found["entries"] if one["state"] != "passed" and one["name"] != "before"]
    assert {one["why"] for one in ended} == {"interrupted"}


def test_without_a_checkout_tests_and_benches_are_skipped(monkeypatch):
    monkeypatch.setattr("asyncsched.gpu_check.command.CHECKOUT", False)
    found = [one for one in entries(quick=False) if one.group in ("test", "bench")]
    assert [(one.name, one.why, one.command) for one in found] == [
        ("test gpu", "needs a checkout", []), ("bench gpu", "needs a checkout", []),
    ]  # fmt: skip


def test_tests_and_sections_of_a_checkout_take_turns_and_none_is_forgotten(tmp_path):
    from bench import gpu

    found = [one for one in entries(quick=False) if one.group in ("test", "bench")]
    assert [one.group for one in found[:6]] == ["test", "bench"] * 3
    tests = [one for one in found if one.group == "test"]
    assert {one.command[-1] for one in tests} == {str(path) for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert (tests[0].name, tests[1].name) == ("table_kernels", "test_table_1")
    assert tests[0].command[-3:-1] == ["--timeout", "0"]  # what compiles is cut off by the limit of the entry alone
    assert len({one.name for one in tests}) == len(tests)
    assert set(SECTIONS) == {row.key for row in gpu.ROWS}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "/no/such/folder/out.json"], "No such file or directory"),
        (["--minutes", "0"], "--minutes must be a finite number of minutes above 0"),
        (["--only", "order,odrer"], "no odrer; there are: before, cold, warm, described, "),
    ],
)
def test_bad_arguments_are_told_at_once(capsys, arguments, said):
    with pytest.raises(SystemExit) as caught:
        main(["gpu-check", *arguments])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err

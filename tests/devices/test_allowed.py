"""What the machine and the container let the process use, and the limit that follows from it."""

from __future__ import annotations

import os
from errno import EMFILE
from pathlib import Path

import pytest

import asyncsched as asc
from asyncsched.devices.host import allowed
from tests.processes import fresh

MACHINE = allowed.allowed_memory()


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(allowed, "GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(allowed, "OWN_GROUPS", str(tmp_path / "own"))
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def limit() -> int | None:
    return allowed.allowed_memory.__wrapped__()


def test_the_machines_memory_where_no_group_limits_it(groups: Path) -> None:
    machine = limit()
    assert machine is not None
    assert machine > 2**20
    write(groups / "own", "0::/user/me\n")
    write(groups / "groups/user/memory.max", "max\n")
    assert limit() == machine


def test_the_smallest_of_the_groups_around_it(groups: Path) -> None:
    write(groups / "own", "0::/user/me\n")
    write(groups / "groups/user/me/memory.max", "9000\n")
    write(groups / "groups/user/memory.max", "5000\n")
    write(groups / "groups/memory.max", "7000\n")
    assert limit() == 5000


def test_in_a_container_that_sees_its_own_group_as_the_root(groups: Path) -> None:
    write(groups / "own", "0::/docker/abc\n")
    write(groups / "groups/memory.max", "7000\n")
    assert limit() == 7000


def test_the_first_version_of_groups(groups: Path) -> None:
    write(groups / "own", "5:cpu:/x\n4:hugetlb,memory:/me\n")
    write(groups / "groups/memory/me/memory.limit_in_bytes", "6000\n")
    write(groups / "groups/me/memory.max", "1\n")
    assert limit() == 6000


def test_the_processors_of_the_machine_and_of_the_groups_around_it(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert allowed.allowed_processors() == 16
    write(groups / "own", "0::/user/me\n")
    write(groups / "groups/user/me/cpu.max", "max 100000\n")
    assert allowed.allowed_processors() == 16
    write(groups / "groups/user/cpu.max", "250000 100000\n")
    assert allowed.allowed_processors() == 3  # as many as get all of the time
    write(groups / "groups/cpu.max", "5000 100000\n")
    assert allowed.allowed_processors() == 1


def test_the_quota_of_the_first_version_of_groups(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    write(groups / "own", "4:cpu,cpuacct:/me\n")
    write(groups / "groups/cpu/me/cpu.cfs_quota_us", "-1\n")
    write(groups / "groups/cpu/me/cpu.cfs_period_us", "100000\n")
    assert allowed.allowed_processors() == 16
    write(groups / "groups/cpu/me/cpu.cfs_quota_us", "400000\n")
    assert allowed.allowed_processors() == 4


async def test_it_is_the_default() -> None:
    async with asc.Scheduler("cpu") as s:
        assert s.statistics().max_bytes == (MACHINE and MACHINE // 2)
    async with asc.Scheduler("cpu", max_bytes=None) as s:
        assert s.statistics().max_bytes is None


def test_without_a_file_descriptor_no_limit_is_overlooked(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise OSError(EMFILE, "Too many open files")

    monkeypatch.setattr(allowed, "open", none_left, raising=False)
    with pytest.raises(OSError, match="Too many"):
        limit()


WITHOUT = """
import asyncio, os, resource, threading
import asyncsched as asc

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        await asc.open("cpu", streams=2)
    except OSError as error:
        print(error)
    for descriptor in taken:
        os.close(descriptor)
    while threading.active_count() > 1:  # the one that opened it ends by itself
        await asyncio.sleep(0)
    async with asc.Scheduler("cpu", streams=2) as s:
        print(await s.call(sum, [1, 2]))

asyncio.run(main())
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="not Linux")
def test_opening_without_a_file_descriptor_says_so_and_succeeds_once_there_are_some() -> None:
    said, result = fresh(WITHOUT).splitlines()
    assert "no file descriptor is left, and a scheduler needs some: close files" in said
    assert result == "3"


@pytest.mark.parametrize(("kind", "used"), [("RLIMIT_AS", 3000), ("RLIMIT_DATA", 1000)])
def test_the_processs_own_limits_count_what_it_has_mapped(
    groups: Path, monkeypatch: pytest.MonkeyPatch, kind: str, used: int
) -> None:
    resource = pytest.importorskip("resource", reason="not on Windows")
    page, machine = os.sysconf("SC_PAGE_SIZE"), limit()
    write(groups / "pages", "3000 500 0 0 0 1000 0\n")
    monkeypatch.setattr(allowed, "OWN_PAGES", str(groups / "pages"))
    most = {getattr(resource, kind): 5000 * page}
    infinite = (resource.RLIM_INFINITY,) * 2
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (most[asked],) * 2 if asked in most else infinite)
    assert limit() == (5000 - used) * page
    most[getattr(resource, kind)] = used * page
    assert limit() == 2  # there is none left
    most.clear()
    assert limit() == machine


UNDER_A_LIMIT = """
import mmap, resource
from asyncsched.devices.host import allowed
mapped, before = allowed._pages()[0], allowed.resident_memory()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**29, resource.RLIM_INFINITY))
print(allowed.allowed_memory() <= 2**29)
with mmap.mmap(-1, 2**26) as taken:
    taken.write(bytes(2**26))
    now = allowed.resident_memory()
print(now[0] - before[0] >= 2**26, now[1] >= now[0] - 2**22, allowed.resident_memory()[0] < now[0])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="not Linux")
def test_the_memory_of_a_process() -> None:
    assert fresh(UNDER_A_LIMIT).split() == ["True"] * 4

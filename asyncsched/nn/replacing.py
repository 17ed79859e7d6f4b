"""Replacing a file as a whole: a kill at any moment leaves the old one or the new one.

Writing is done in a folder beside the target, because safetensors has a temporary file of its own, under a name that
nobody else knows. The folder is locked while its process lives, so the next save can tell one that a kill left.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISREG

try:
    import fcntl
except ImportError:  # on Windows, where what a kill left stays
    fcntl = None  # type: ignore[assignment]

AnyPath = str | os.PathLike[str]


@contextmanager
def replacing(path: AnyPath) -> Iterator[Path]:
    """A context with the path to write to. At its end the new file reaches the disk, and then replaces the old one."""
    target = Path(path).resolve()
    require_regular(target, "save")
    _remove_left(target)
    folder, lock = _temporary(target)
    try:
        temporary = folder / "state"
        mode = _mode(target, temporary)
        yield temporary
        _sync(temporary, os.O_RDWR)
        temporary.chmod(mode)  # safetensors lets nobody else read what it writes
        os.replace(temporary, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)
    if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder cannot be opened
        _sync(target.parent, os.O_DIRECTORY)


def require_regular(path: AnyPath, what: str) -> None:
    """Refuse a device, a pipe and the like: a file would take its place, and to read it may take for ever.

    Raises:
        OSError: for what is there and is neither a file nor a folder.
    """
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if not S_ISREG(mode) and not S_ISDIR(mode):
            raise OSError(
                EINVAL, f"{what} takes the path of a file, and this is a device, a pipe or a socket", os.fspath(path)
            )


def _temporary(target: Path) -> tuple[Path, int | None]:
    """A new folder beside the target, and what holds its lock."""
    while True:
        folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        folder.mkdir(0o700)
        try:
            return folder, _locked(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another save took it for one that a kill left, before it was locked
        except OSError:
            return folder, None  # a file system without locks: there nobody removes what is left, either


def _remove_left(target: Path) -> None:
    """Remove what killed saves of this target left (files, of versions before). What others still write has a lock."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.tmp")
    for folder in [entry for entry in target.parent.iterdir() if name.fullmatch(entry.name)]:
        try:
            lock = _locked(folder)
        except OSError:
            continue
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
        else:
            folder.unlink(missing_ok=True)
        os.close(lock)


def _locked(folder: Path) -> int:
    """A descriptor that keeps the lock of a folder until it is closed, or its process ends.

    Raises:
        BlockingIOError, FileNotFoundError: if another process has the lock, or had it and removed the folder.
        OSError: if there are no locks here.
    """
    if fcntl is None:
        raise OSError("no locks")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.stat()
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _mode(target: Path, temporary: Path) -> int:
    """The permissions for the new file: those of the file that it replaces, else those of any new one."""
    if not target.exists():
        temporary.touch()
        target = temporary
    return S_IMODE(target.stat().st_mode)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

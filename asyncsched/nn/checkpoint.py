"""Saving and loading states, in the safetensors format.

A state is a dict of tensors, NumPy arrays and values that JSON can hold, in dicts and lists of any depth. A tensor at
state["model"]["0.weight"] is stored under "model/0.weight". So the file of a plain dict of tensors is an ordinary
safetensors file, and such files from elsewhere load. The metadata has everything else, and the places of tensors and
arrays.

The files of states: written whole or not at all, and read with every bit checked.

A file has its layout in the metadata, and with it a CRC-32 for each array (of its dtype, shape and bytes) and one for
the layout. So every flipped bit is found, in names and offsets as well as in numbers. It is no protection against
intent. There are two keys, so a flipped bit in either key is found, too. Files from elsewhere have neither. Earlier
versions wrote only the layout, under another key.

A file is replaced as a whole: a kill at any moment leaves the old one or the new one. The file is written in a folder
beside the target, because safetensors makes a temporary file under a name of its own. The folder is locked while its
process lives, so the next save recognises a folder that a kill left.

A save that was cancelled goes on in its thread, and a large file takes longer than a small one. So the saves of a
process to one path are numbered, and one that is overtaken by a later one leaves the file of that in place.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from errno import EINVAL, EISDIR
from functools import partial
from itertools import count
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISREG
from typing import Any
from weakref import WeakValueDictionary
from zlib import crc32

import numpy as np

from .._arguments import refuse_mask_or_unit, require_package
from .._blocks import contextmanager
from .._interrupts import Lock
from ..errors import CheckpointDamaged
from ..flow.scope import Submitter
from ..ops.meta import CODES
from ..runtime.context import find
from ..runtime.threads import in_thread
from ..tensors.arguments import dtype_of
from ..tensors.awaitables import gather
from ..tensors.tensor import Tensor

try:
    import fcntl
except ImportError:  # on Windows, where folders that a kill left stay
    fcntl = None  # type: ignore[assignment]

AnyPath = str | os.PathLike[str]
Replace = Callable[[Path, Path], None]  # as `os.replace`
_LAYOUT, _SUMS, _UNCHECKED = "asyncsched.state", "asyncsched.crc32", "asyncsched"
_OF_LAYOUT = ""  # a key beside the names of the arrays, none of which is empty


class StoredState:
    """A file that is read: a context manager.

    Attributes:
        layout: the one given to `write` with the arrays; None for a file from elsewhere.
        names: of the arrays.

    Raises:
        CheckpointDamaged: if it is no safetensors file, or not as it was written.
    """

    def __init__(self, path: AnyPath) -> None:
        from safetensors import SafetensorError, safe_open

        self._path, self._error = os.fsdecode(path), SafetensorError
        _require_regular(self._path, "load", "reads")  # for a folder safetensors says that there is no such device
        self._file: Any
        try:
            self._file = safe_open(self._path, "numpy")
        except SafetensorError as error:
            raise self.damaged(str(error)) from error
        self._sums: dict[str, int] | None = None
        try:
            self.names: list[str] = list(self._file.keys())
            self.layout: Any = self._read_layout(self._file.metadata() or {})
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _read_layout(self, metadata: Mapping[str, str]) -> Any:
        text, sums = metadata.get(_LAYOUT, metadata.get(_UNCHECKED)), metadata.get(_SUMS)
        if (_LAYOUT in metadata) != (sums is not None):
            raise self.damaged("it has a layout and checksums, but one of them is gone")
        try:
            self._sums = None if sums is None else dict(json.loads(sums))
            layout = None if text is None else json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise self.damaged(f"its layout cannot be read: {error}") from error
        if self._sums is not None and (self._sums.keys() - {_OF_LAYOUT} != set(self.names)):
            raise self.damaged("it has other tensors than were written")
        self._check(_OF_LAYOUT, "its layout", crc32((text or "").encode()))
        return layout

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """One array.

        Raises:
            TypeError: if NumPy has no such dtype.
        """
        try:
            array: np.ndarray[Any, Any] = self._file.get_tensor(name)
            dtype_of(array.dtype)  # where ml_dtypes is imported, NumPy does know a dtype such as bfloat16
        except (TypeError, AttributeError) as error:  # one or the other, depending on the dtype
            raise TypeError(f"{name}: NumPy has no such dtype: store it in float32, for example ({error})") from error
        except (ValueError, self._error) as error:
            raise self.damaged(f"{name!r} cannot be read: {error}") from error
        self._check(name, repr(name), _sum(array))
        return array

    def _check(self, name: str, what: str, found: int) -> None:
        if self._sums is not None and self._sums.get(name) != found:
            raise self.damaged(f"{what} is not what was written: its checksum differs")

    def damaged(self, why: str) -> CheckpointDamaged:
        """The error to raise for a damaged file."""
        return CheckpointDamaged(
            f"{self._path} is damaged, or no checkpoint: {why}; go back to an earlier one, or copy it once more"
        )

    def __enter__(self) -> StoredState:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)


class _Target:
    """What the saves under way to one path share."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.newest = 0  # the number of the save that wrote the file


_numbers = count(1)  # of saves, in the order of their calls
_targets: WeakValueDictionary[str, _Target] = WeakValueDictionary()
_finding = Lock()


def in_order(path: AnyPath) -> Replace:
    """A function for the save that begins now. It replaces the file, unless a later save to this path has done so."""
    with _finding:
        shared, number = _targets.setdefault(os.fsdecode(path), _Target()), next(_numbers)

    def replace(temporary: Path, target: Path) -> None:
        with shared.lock:
            if number > shared.newest:
                os.replace(temporary, target)
                shared.newest = number

    return replace


def write(path: AnyPath, arrays: Mapping[str, np.ndarray[Any, Any]], layout: Any, replace: Replace) -> None:
    """Write a file in the place of one that may be there."""
    from safetensors.numpy import save_file

    arrays = {name: _plain(array) for name, array in arrays.items()}
    text = json.dumps(layout)
    sums = {_OF_LAYOUT: crc32(text.encode()), **{name: _sum(array) for name, array in arrays.items()}}
    with _replacing(path, replace) as temporary:
        save_file(arrays, temporary, {_LAYOUT: text, _SUMS: json.dumps(sums)})


def _plain(array: Any) -> np.ndarray[Any, Any]:
    """The array as the format has it: in C order, since it knows no strides, and little-endian."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _sum(array: np.ndarray[Any, Any]) -> int:
    return crc32(array.reshape(-1).view(np.uint8).data, crc32(f"{array.dtype.str} {array.shape}".encode()))


@contextmanager
def _replacing(path: AnyPath, replace: Replace) -> Iterator[Path]:
    """A context with the path to write to. At its end the new file reaches the disk, and then replaces the old one."""
    target = Path(os.fsdecode(path)).resolve()
    _require_regular(path, "save", "writes")
    _remove_left(target)
    folder, lock = _temporary(target)
    try:
        temporary = folder / "state"
        mode = _mode(target, temporary)
        yield temporary
        _sync(temporary, os.O_RDWR)
        temporary.chmod(mode)  # safetensors lets nobody else read what it writes
        replace(temporary, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)
    if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder cannot be opened
        _sync(target.parent, os.O_DIRECTORY)


def _require_regular(path: AnyPath, what: str, does: str) -> None:
    """Refuse a folder; and a device, a pipe and the like: a file would replace it, and reading it may take for ever.

    Raises:
        OSError: if the path exists and is no file.
    """
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if S_ISDIR(mode):
            raise IsADirectoryError(EISDIR, f"{what} {does} one file, and this is a folder", os.fspath(path))
        if not S_ISREG(mode):
            raise OSError(
                EINVAL, f"{what} takes the path of a file, and this is a device, a pipe or a socket", os.fspath(path)
            )


def _temporary(target: Path) -> tuple[Path, int | None]:
    """A new folder beside the target, and the descriptor that holds its lock."""
    while True:
        folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        folder.mkdir(0o700)
        try:
            return folder, _locked(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # before it was locked, another save took it for one that a kill left
        except OSError:
            return folder, None  # a file system without locks: there no save removes old folders, either


def _remove_left(target: Path) -> None:
    """Remove the folders of killed saves of this target (of earlier versions: files). Folders in use are locked."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.tmp")
    for folder in [entry for entry in target.parent.iterdir() if name.fullmatch(entry.name)]:
        try:
            if not S_ISDIR(mode := folder.lstat().st_mode) and not S_ISREG(mode):
                continue  # no save left a pipe or a link, and to open a pipe may take for ever
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


# The keys that mark tensors and arrays in the layout. No dict of a state has them, since its keys have no slash.
_TENSOR, _ARRAY = {"/": "tensor"}, {"/": "array"}
_NO_KEYS = ("", "__metadata__")  # a slash would make paths ambiguous, and the format uses this name itself
_MOST_LEVELS = 100  # Python limits nested calls, and each level takes two or three


async def save(path: AnyPath, state: Mapping[str, Any]) -> None:
    """Write a state to a file, replacing one that is there.

    The file has the state at the moment of the call; training may go on meanwhile. A kill at any moment, of the process
    or of the machine, leaves the old file or the new one, whole (and perhaps a hidden folder beside it, which the next
    save to this path removes). So do a cancellation and an error. Of several saves at once the one that was called last
    stays, also if an earlier one was cancelled. A worker thread writes the file. It has checksums, by which `load`
    recognises an altered file.

    Save once before you train. Then an error that would come after the first epoch comes at once: a missing package, a
    folder without permission to write.

    Args:
        path: of the file.
        state: a dict of tensors, arrays and values that JSON can hold, also in lists and in dicts with text for keys.
            Tuples come back as lists.

    Raises:
        TypeError: for an object that cannot be stored. The message names it.
        ValueError: for a state that contains itself, or is nested too deep; for an empty path.
        OSError, safetensors.SafetensorError: if the file cannot be written. Nothing is written beside a folder, a
            device or a pipe of that name.
        ImportError: at once, if the package safetensors is not installed.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> async def main(folder):
    ...     async with asc.Scheduler("cpu") as s:
    ...         model = asc.nn.Linear(3, 2, rng=0)
    ...         await asc.save(folder / "model.safetensors", {"model": model.state_dict(), "epoch": 5})
    ...         state = await asc.load(folder / "model.safetensors")
    ...         model.load_state_dict(state["model"])
    ...         return state["epoch"]
    >>> with TemporaryDirectory() as folder:
    ...     asyncio.run(main(Path(folder)))
    5
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise TypeError(f"save takes the path first, not {type(path).__name__}: `await asc.save(path, state)`")
    if not os.fspath(path):
        raise ValueError("save takes the path of a file, and this is empty")
    if not isinstance(state, Mapping):  # such a file could not be loaded
        cure = "it.state_dict()" if hasattr(state, "state_dict") else '{"it": it}'
        kind = type(state).__name__
        raise TypeError(f"save takes a state, which is a dict, not {kind}: `await asc.save(path, {cure})`")
    require_package("asyncsched.save", "safetensors", "safetensors")
    replace = in_order(path)
    leaves: dict[str, Any] = {}
    layout = _layout(state, "", leaves, ())
    # New handles, since the user's may move to new versions before the copies below are made.
    tensors = {name: leaf.detach() for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
    for (name, tensor), array in zip(tensors.items(), await gather(*tensors.values()), strict=True):
        leaves[name] = array if isinstance(array, np.ndarray) else await tensor.numpy()
    await in_thread(partial(write, path, leaves, layout, replace), f"saving {os.fsdecode(path)}")


async def load(path: AnyPath, *, device: object = None, scheduler: Any = None) -> dict[str, Any]:
    """Read a state from a file: as it was saved, or a plain dict of tensors if the file is from elsewhere.

    Reads one tensor at a time on a worker thread, and waits for room for each.

    Args:
        path: of the file.
        device: of the tensors; default the scheduler's first device.
        scheduler: whose tensors; default the ambient one.

    Raises:
        OSError: if there is no such file, or it is a folder.
        CheckpointDamaged: if it is no checkpoint, or not as it was written: cut off, or with a flipped bit. Files from
            elsewhere have no checksums: there it is raised if they cannot be read, and not for wrong numbers.
        TypeError: for a tensor in a dtype that NumPy does not have, such as bfloat16. The message names it.
        ImportError: if the package safetensors is not installed.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> async def main(path):
    ...     async with asc.Scheduler("cpu") as s:
    ...         await asc.save(path, {"weight": await s.put(np.arange(3)), "note": "by hand"})
    ...         state = await asc.load(path)
    ...         return await state["weight"], state["note"]
    >>> with TemporaryDirectory() as folder:
    ...     asyncio.run(main(Path(folder) / "state.safetensors"))
    (array([0, 1, 2]), 'by hand')
    """
    require_package("asyncsched.load", "safetensors", "safetensors")
    here = Submitter(find(scheduler))
    loading = f"loading {os.fsdecode(path)}"
    with await in_thread(partial(StoredState, path), loading) as file:
        layout = dict.fromkeys(file.names, _TENSOR) if file.layout is None else file.layout
        kinds: dict[str, Any] = {}
        try:
            _filled(layout, "", kinds.setdefault)
        except RecursionError as error:
            raise file.damaged("its layout is nested too deep") from error
        if not isinstance(layout, dict) or kinds.keys() != set(file.names):
            raise file.damaged("its layout is of other tensors")
        leaves: dict[str, Any] = {}
        for name, kind in kinds.items():
            array = await in_thread(partial(file.read, name), loading)
            leaves[name] = array if kind == _ARRAY else await here.put(array, device=device)
        found: dict[str, Any] = _filled(layout, "", lambda name, _: leaves[name])
        return found


def _layout(state: Any, path: str, leaves: dict[str, Any], within: tuple[Any, ...]) -> Any:
    """The state without its tensors and arrays, which go to `leaves`, by path. `within` has the containers around it.

    `_tree.map_leaves` would not do: it knows no paths, checks no keys, and keeps tuples.
    """
    where = f"{path}: " if path else ""
    if isinstance(state, Mapping | list | tuple):
        if any(state is outer for outer in within):
            raise ValueError(f"{path}: the state contains itself here: save its parts")
        if len(within) == _MOST_LEVELS:
            raise ValueError(f"{path}: a state is nested at most {_MOST_LEVELS} levels deep: use fewer, longer lists")
        within = (*within, state)
    if isinstance(state, Mapping):
        for name in state:
            if not isinstance(name, str) or "/" in name or name in _NO_KEYS:
                raise TypeError(f"{where}the keys of a state are text without a slash, not {name!r}: use `str(key)`")
        return {name: _layout(value, _join(path, name), leaves, within) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return [_layout(value, _join(path, i), leaves, within) for i, value in enumerate(state)]
    if isinstance(state, Tensor | np.ndarray | np.generic):
        if state.dtype.char not in CODES or state.dtype.itemsize > 8:
            raise TypeError(f"{path}: the format has no dtype {state.dtype}: use `astype`")
        try:
            refuse_mask_or_unit(state)
            path.encode()
        except (TypeError, UnicodeEncodeError) as error:
            raise TypeError(f"{path!a}: {error}") from None
        leaves[path] = state if isinstance(state, Tensor) else np.array(state)
        return _TENSOR if isinstance(state, Tensor) else _ARRAY
    if state is None or isinstance(state, bool | int | float | str):
        return state
    raise TypeError(f"{where}a state holds tensors, arrays and what JSON can hold, not {type(state).__name__}")


def _filled(layout: Any, path: str, leaf: Callable[[str, Any], Any]) -> Any:
    """The layout, filled again: `leaf` gives the tensor or array for each path and mark that `_layout` left."""
    if layout in (_TENSOR, _ARRAY):
        return leaf(path, layout)
    if isinstance(layout, dict):
        return {name: _filled(value, _join(path, name), leaf) for name, value in layout.items()}
    if isinstance(layout, list):
        return [_filled(value, _join(path, i), leaf) for i, value in enumerate(layout)]
    return layout


def _join(path: str, name: object) -> str:
    return f"{path}/{name}" if path else str(name)

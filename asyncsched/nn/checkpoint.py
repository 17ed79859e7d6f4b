"""Saving and loading states, in the safetensors format.

A state is a dict of tensors, NumPy arrays and whatever JSON can hold, in dicts and lists as deep as one likes. A tensor
at state["model"]["0.weight"] is stored under "model/0.weight", so the file of a plain dict of tensors is an ordinary
safetensors file, and such files from elsewhere load. The metadata has all else, and says where tensors and arrays go.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from stat import S_IMODE
from typing import Any

import numpy as np
from anyio import to_thread

from ..flow.tasks import Tasks
from ..runtime.context import find
from ..tensors.handles import gather
from ..tensors.tensor import Tensor

_Path = str | os.PathLike[str]
_METADATA = "asyncsched"
# What stands for them in the layout: no key of a state has a slash.
_TENSOR, _ARRAY = {"/": "tensor"}, {"/": "array"}
_NO_KEYS = ("", "__metadata__")  # paths would not be told apart, and the format has this name for itself


async def save(path: _Path, state: Mapping[str, Any]) -> None:
    """Write a state to a file, replacing one that is there.

    What is saved is the state of the moment of the call; training may go on meanwhile. A kill at any moment, of the
    process or of the machine, leaves the old file or the new one, whole (and perhaps a hidden temporary file beside
    it). The same holds for cancelling, and for an error. The writing is done on a worker thread.

    Args:
        path: of the file.
        state: tensors, arrays and what JSON can hold, in lists and in dicts with text for keys. Tuples come back as
            lists.

    Raises:
        TypeError: for what cannot be stored, naming it.
        OSError, safetensors.SafetensorError: if the file cannot be written.
        ImportError: if the package safetensors is not installed.

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
    leaves: dict[str, Any] = {}
    layout = _layout(state, "", leaves)
    tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
    arrays = dict(zip(tensors, await gather(*tensors.values()), strict=True))
    arrays |= {name: leaf for name, leaf in leaves.items() if name not in tensors}
    await to_thread.run_sync(_write, path, arrays, {_METADATA: json.dumps(layout)})


async def load(path: _Path, *, device: object = None, scheduler: Any = None) -> dict[str, Any]:
    """Read a state from a file: what was saved, or a plain dict of tensors if the file is from elsewhere.

    Reads one tensor at a time on a worker thread, and waits for room for each.

    Args:
        path: of the file.
        device: where the tensors go; default the scheduler's first device.
        scheduler: whose tensors; default the ambient one.

    Raises:
        OSError: if there is no such file.
        safetensors.SafetensorError: if it is none, or is damaged.
        TypeError: for a tensor in a dtype that NumPy has not, such as bfloat16, naming it.
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
    here = Tasks(find(scheduler))
    file = await to_thread.run_sync(_open, path)

    async def stored(name: str, kind: Any) -> Any:
        array = await to_thread.run_sync(_read, file, name)
        return array if kind == _ARRAY else await here.put(array, device=device)

    with file:
        layout = (file.metadata() or {}).get(_METADATA)
        state = dict.fromkeys(file.keys(), _TENSOR) if layout is None else json.loads(layout)
        return {name: await _filled(value, name, stored) for name, value in state.items()}


def _layout(state: Any, path: str, leaves: dict[str, Any]) -> Any:
    """The state with its tensors and arrays taken out, which go to `leaves`, by path.

    Not by `_tree.map_leaves`, which knows no paths, checks no keys and leaves a tuple what it is.
    """
    if isinstance(state, Mapping):
        for name in state:
            if not isinstance(name, str) or "/" in name or name in _NO_KEYS:
                raise TypeError(f"{path}: the keys of a state are text without a slash, not {name!r}: use `str(key)`")
        return {name: _layout(value, _join(path, name), leaves) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return [_layout(value, _join(path, i), leaves) for i, value in enumerate(state)]
    if isinstance(state, Tensor | np.ndarray | np.generic):
        if state.dtype.kind not in "biufc" or state.dtype.itemsize > 8:
            raise TypeError(f"{path}: the format has no dtype {state.dtype}: use `astype`")
        leaves[path] = state if isinstance(state, Tensor) else np.array(state)
        return _TENSOR if isinstance(state, Tensor) else _ARRAY
    if state is None or isinstance(state, bool | int | float | str):
        return state
    raise TypeError(f"{path}: a state holds tensors, arrays and what JSON can hold, not {type(state).__name__}")


async def _filled(layout: Any, path: str, stored: Callable[[str, Any], Awaitable[Any]]) -> Any:
    """The state again, with what is stored under its paths where `_layout` took something out."""
    if layout in (_TENSOR, _ARRAY):
        return await stored(path, layout)
    if isinstance(layout, dict):
        return {name: await _filled(value, _join(path, name), stored) for name, value in layout.items()}
    if isinstance(layout, list):
        return [await _filled(value, _join(path, i), stored) for i, value in enumerate(layout)]
    return layout


def _join(path: str, name: object) -> str:
    return f"{path}/{name}" if path else str(name)


def _open(path: _Path) -> Any:
    from safetensors import safe_open

    return safe_open(os.fspath(path), "numpy")


def _read(file: Any, name: str) -> Any:
    try:
        return file.get_tensor(name)
    except (TypeError, AttributeError) as error:  # either, depending on the dtype
        raise TypeError(f"{name}: NumPy has no such dtype: store it in float32, for example ({error})") from error


def _write(path: _Path, arrays: Mapping[str, np.ndarray[Any, Any]], metadata: dict[str, str] | None) -> None:
    """Write to a file beside it, have that reach the disk, and only then take its place."""
    from safetensors.numpy import save_file

    target = Path(path).resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        mode = _mode(target, temporary)
        # As in C, since the format knows no strides.
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, temporary, metadata)
        _sync(temporary, os.O_RDWR)
        temporary.chmod(mode)  # safetensors lets nobody else read what it writes
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder cannot be opened
        _sync(target.parent, os.O_DIRECTORY)


def _mode(target: Path, temporary: Path) -> int:
    """Who may read and write: as it was for the file that is replaced, else as for any new one."""
    if not target.exists():
        temporary.touch()
        target = temporary
    return S_IMODE(target.stat().st_mode)


def _sync(path: _Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

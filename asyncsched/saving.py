"""Saving and loading states, in the safetensors format.

A state is a dict of tensors, NumPy arrays and whatever JSON can hold, in dicts as deep as one likes. A tensor at
state["model"]["0.weight"] is stored under "model/0.weight", so the file of a plain dict of tensors is an ordinary
safetensors file, and such files from elsewhere load. What is no tensor is in the file's metadata.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from anyio import to_thread

from .ambient import find
from .driver import Driver
from .handles import gather
from .scope import Submitter
from .tensor import Tensor

_Path = str | os.PathLike[str]
_METADATA = "asyncsched"


async def save(path: _Path, state: Mapping[str, Any]) -> None:
    """Write a state to a file, replacing one that is there.

    What is saved is the state of the moment of the call; training may go on meanwhile. A kill at any moment, of the
    process or of the machine, leaves the old file or the new one, whole (and perhaps a hidden temporary file beside
    it). The same holds for cancelling, and for an error. The writing is done on a worker thread.

    Args:
        path: of the file.
        state: tensors, arrays and what JSON can hold, in dicts with names for keys; tuples come back as lists.

    Raises:
        TypeError, ValueError: for what cannot be stored, by name.
        ImportError: if the package safetensors is not installed.
    """
    leaves = dict(_leaves(state))
    tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
    arrays = {name: np.array(leaf) for name, leaf in leaves.items() if isinstance(leaf, np.ndarray | np.generic)}
    plain = {name: leaf for name, leaf in leaves.items() if name not in tensors and name not in arrays}
    metadata = _metadata(plain, list(arrays))
    found = await gather(*tensors.values())
    arrays |= zip(tensors, found, strict=True)
    for name, array in arrays.items():
        _check_dtype(name, array.dtype)
    await to_thread.run_sync(_write, path, arrays, metadata)


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
        ImportError: if the package safetensors is not installed.
    """
    here = _Here(find(scheduler))
    file = await to_thread.run_sync(_open, path)
    with file:
        stored = json.loads((file.metadata() or {}).get(_METADATA, "{}"))
        leaves = dict(stored.get("plain", {}))
        on_host = set(stored.get("arrays", ()))
        for name in file.keys():  # noqa: SIM118  # no dict: it cannot be iterated over
            array = await to_thread.run_sync(file.get_tensor, name)
            leaves[name] = array if name in on_host else await here.put(array, device=device)
    return _nested(leaves)


class _Here(Submitter):
    """The scope this code is in."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._core = driver.scope  # type: ignore[method-assign]


def _leaves(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if not isinstance(name, str) or "/" in name:
            raise TypeError(f"{prefix}{name!r}: the keys of a state are names, without a slash: use `str(key)`")
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for path, value in leaves.items():
        *parents, name = path.split("/")
        inner = state
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    return state


def _metadata(plain: Mapping[str, Any], arrays: list[str]) -> dict[str, str] | None:
    for name, value in plain.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise TypeError(f"{name}: only tensors, arrays and what JSON can hold can be saved: {error}") from None
    return {_METADATA: json.dumps({"plain": plain, "arrays": arrays})} if plain or arrays else None


def _check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biufc" or dtype.itemsize > 8:
        raise TypeError(f"{name}: the format has no dtype {dtype}: use `astype`")


def _open(path: _Path) -> Any:
    from safetensors import safe_open

    return safe_open(os.fspath(path), "numpy")


def _write(path: _Path, arrays: Mapping[str, np.ndarray[Any, Any]], metadata: dict[str, str] | None) -> None:
    """Write to a file beside it, have that reach the disk, and only then take its place."""
    from safetensors.numpy import save_file

    target = Path(path).resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        # As in C, since the format knows no strides.
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, temporary, metadata)
        _sync(temporary, os.O_RDWR)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder cannot be opened
        _sync(target.parent, os.O_DIRECTORY)


def _sync(path: _Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

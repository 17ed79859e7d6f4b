"""Saving and loading states, in the safetensors format.

A state is a dict of tensors, NumPy arrays and values that JSON can hold, in dicts and lists of any depth. A tensor at
state["model"]["0.weight"] is stored under "model/0.weight". So the file of a plain dict of tensors is an ordinary
safetensors file, and such files from elsewhere load. The metadata has everything else, and the places of tensors and
arrays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from .._arguments import refuse_mask_or_unit, require_package
from ..flow.tasks import Tasks
from ..ops.meta import CODES
from ..runtime.context import find
from ..runtime.threads import in_thread
from ..tensors.awaitables import gather
from ..tensors.tensor import Tensor
from .checkpoint_file import AnyPath, StoredState, write

# The keys that mark tensors and arrays in the layout. No dict of a state has them, since its keys have no slash.
_TENSOR, _ARRAY = {"/": "tensor"}, {"/": "array"}
_NO_KEYS = ("", "__metadata__")  # a slash would make paths ambiguous, and the format uses this name itself
_MOST_LEVELS = 100  # Python limits nested calls, and each level takes two or three


async def save(path: AnyPath, state: Mapping[str, Any]) -> None:
    """Write a state to a file, replacing one that is there.

    The file has the state at the moment of the call; training may go on meanwhile. A kill at any moment, of the process
    or of the machine, leaves the old file or the new one, whole (and perhaps a hidden folder beside it, which the next
    save to this path removes). So do a cancellation and an error. A worker thread writes the file. It has checksums, by
    which `load` recognises an altered file.

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
    leaves: dict[str, Any] = {}
    layout = _layout(state, "", leaves, ())
    # New handles, since the user's may move to new versions before the copies below are made.
    tensors = {name: leaf.detach() for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
    for (name, tensor), array in zip(tensors.items(), await gather(*tensors.values()), strict=True):
        leaves[name] = array if isinstance(array, np.ndarray) else await tensor.numpy()
    await in_thread(partial(write, path, leaves, layout), f"saving {os.fsdecode(path)}")


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
    here = Tasks(find(scheduler))
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
    if isinstance(state, Mapping | list | tuple):
        if any(state is outer for outer in within):
            raise ValueError(f"{path}: the state contains itself here: save its parts")
        if len(within) == _MOST_LEVELS:
            raise ValueError(f"{path}: a state is nested at most {_MOST_LEVELS} levels deep: use fewer, longer lists")
        within = (*within, state)
    if isinstance(state, Mapping):
        for name in state:
            if not isinstance(name, str) or "/" in name or name in _NO_KEYS:
                raise TypeError(f"{path}: the keys of a state are text without a slash, not {name!r}: use `str(key)`")
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
    where = f"{path}: " if path else ""
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

"""The files of states: written whole or not at all, and read with every bit checked.

A file has its layout in the metadata, and with it a CRC-32 for each array (of its dtype, shape and bytes) and one for
the layout. That tells every flipped bit, in the names and offsets as well as in the numbers; it is no protection
against somebody who means it. Two keys, so that a bit flipped in either is told, too. Files from elsewhere have none,
and those of versions before had the layout alone, under another key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from errno import EISDIR
from typing import Any
from zlib import crc32

import numpy as np

from ..errors import CheckpointDamaged
from .replacing import AnyPath, replacing, require_regular

_Arrays = Mapping[str, np.ndarray[Any, Any]]
_LAYOUT, _SUMS, _UNCHECKED = "asyncsched.state", "asyncsched.crc32", "asyncsched"
_OF_LAYOUT = ""  # among the names of the arrays, none of which is empty


class StoredState:
    """A file that is read: a context manager.

    Attributes:
        layout: what was given to `write` with the arrays; None for a file from elsewhere.
        names: of the arrays.

    Raises:
        CheckpointDamaged: if it is no such file, or not as it was written.
    """

    def __init__(self, path: AnyPath) -> None:
        from safetensors import SafetensorError, safe_open

        self._path, self._error = os.fspath(path), SafetensorError
        if os.path.isdir(self._path):  # of which the package says that there is no such device
            raise IsADirectoryError(EISDIR, "load reads one file, and this is a folder", self._path)
        require_regular(self._path, "load")
        self._file: Any
        try:
            self._file = safe_open(self._path, "numpy")
        except SafetensorError as error:
            raise self.damaged(str(error)) from error
        self._sums: dict[str, int] | None = None
        try:
            self.names = list(self._file.keys())
            self.layout = self._read_layout(self._file.metadata() or {})
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
        except (TypeError, AttributeError) as error:  # either, depending on the dtype
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


def write(path: AnyPath, arrays: _Arrays, layout: Any) -> None:
    """Write a file in the place of one that may be there."""
    from safetensors.numpy import save_file

    arrays = {name: _plain(array) for name, array in arrays.items()}
    text = json.dumps(layout)
    sums = {_OF_LAYOUT: crc32(text.encode()), **{name: _sum(array) for name, array in arrays.items()}}
    with replacing(path) as temporary:
        save_file(arrays, temporary, {_LAYOUT: text, _SUMS: json.dumps(sums)})


def _plain(array: Any) -> np.ndarray[Any, Any]:
    """The array as the format has it: in C order, since it knows no strides, and little-endian."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _sum(array: np.ndarray[Any, Any]) -> int:
    return crc32(array.reshape(-1).view(np.uint8).data, crc32(f"{array.dtype.str} {array.shape}".encode()))

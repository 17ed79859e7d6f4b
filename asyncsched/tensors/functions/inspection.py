"""What a program can ask about the namespace: `asc.__array_namespace_info__()`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...runtime.context import find

_NUMPY: Any = np.__array_namespace_info__()


class Info:
    """What there is, by the names of the standard. Dtypes are the same on every device."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks and data-dependent shapes, which are (None,) until they are done; 64 dimensions at most."""
        return dict(_NUMPY.capabilities())

    def default_device(self) -> Any:
        """The first device of the ambient scheduler, where tensors are made unless another is named."""
        return find().devices[0]

    def devices(self) -> tuple[Any, ...]:
        """All devices of the ambient scheduler."""
        return tuple(find().devices)

    def default_dtypes(self, *, device: object = None) -> dict[str, np.dtype[Any]]:
        """The dtypes that Python's numbers get: float64, complex128, int64."""
        return dict(_NUMPY.default_dtypes())

    def dtypes(self, *, device: object = None, kind: str | tuple[str, ...] | None = None) -> dict[str, np.dtype[Any]]:
        """The dtypes of a kind, or of one of several, by name; all without."""
        return dict(_NUMPY.dtypes(kind=kind))


def __array_namespace_info__() -> Info:
    """What the namespace can do, as the standard asks for it."""
    return Info()


__array_api_version__ = "2025.12"

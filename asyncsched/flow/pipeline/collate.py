"""Making one batch of many items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def collate(items: Sequence[Any]) -> Any:
    """Stack items along a new first axis, as a data loader does by default.

    Arrays and Python or NumPy numbers become one array of shape (len(items), ...), in NumPy's dtype for them; tuples
    and lists a tuple, named tuples and dicts one of their kind, with each field collated. Anything else, text for
    example, becomes a list.

    Raises:
        ValueError: if shapes, lengths or keys differ between items.
    """
    first = items[0]
    if isinstance(first, dict):
        _must_agree("keys", [item.keys() for item in items])
        return {key: collate([item[key] for item in items]) for key in first}
    if isinstance(first, tuple | list):
        _must_agree("length", [len(item) for item in items])
        fields = [collate(field) for field in zip(*items, strict=True)]
        return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)
    if isinstance(first, np.ndarray):
        _must_agree("shape", [np.shape(item) for item in items])
        masked = any(isinstance(item, np.ma.MaskedArray) for item in items)
        return np.ma.stack(items) if masked else np.stack(items)  # which would drop the masks
    if isinstance(first, bool | int | float | complex | np.generic):
        return np.array(items)
    return list(items)


def _must_agree(what: str, found: Sequence[Any]) -> None:
    for i, other in enumerate(found):
        if other != found[0]:
            raise ValueError(
                f"the items of a batch differ in {what}: {found[0]} and, at {i}, {other};"
                " make them alike in a `.map` before, or pass `.batch(..., collate=fn)`"
            )

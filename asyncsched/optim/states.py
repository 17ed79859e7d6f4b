"""Checking and copying what an optimiser keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..tensors.tensor import Tensor

Settings = dict[str, Any]  # of a group, by name
State = dict[str, Any]  # of a parameter, by name
COUNT = np.dtype("i8")  # of the number of steps


def check_state(what: str, parameter: Tensor, state: object, kept: Sequence[Sequence[str]]) -> None:
    """Raise unless this is a state of a parameter: one of those in `kept`, or nothing if it never moved."""
    if not isinstance(state, Mapping):
        raise TypeError(f"the state of {what} must be a dict, not {type(state).__name__}")
    if state and not any(state.keys() == set(names) for names in kept):
        check_names(f"the state of {what}", state, set(kept[0]))
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} of {what} must be a tensor, not {type(tensor).__name__}")
        form = ((), COUNT) if name == "step" else (parameter.shape, parameter.dtype)
        if (tensor.shape, tensor.dtype, tensor.device) != (*form, parameter.device):
            raise ValueError(
                f"{name} of {what} is {tensor!r}, and the parameter {parameter!r}: it must have shape {form[0]},"
                f" dtype {form[1]}, and the parameter's device and scheduler"
            )


def check_names(what: str, given: Mapping[str, Any], names: set[str]) -> None:
    """Raise unless it has these names."""
    if given.keys() != names:
        missing, unexpected = [sorted(map(str, found)) for found in (names - given.keys(), given.keys() - names)]
        raise ValueError(f"{what} does not fit: missing {missing}, unexpected {unexpected}; is it another optimiser's?")


def check_list(name: str, given: Any) -> Sequence[Any]:
    """Raise unless it is a list."""
    if not isinstance(given, list | tuple):
        raise TypeError(f"{name} must be a list, as from `state_dict()`, not {type(given).__name__}")
    return given


def copied(state: Mapping[str, Any]) -> State:
    """The same tensors under new handles."""
    return {name: kept.detach() if isinstance(kept, Tensor) else kept for name, kept in state.items()}

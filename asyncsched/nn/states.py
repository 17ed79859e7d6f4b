"""Setting the tensors of a module to those of a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tensors.tensor import Tensor


def set_state(
    what: str, own: Mapping[str, Tensor], extra: Mapping[str, Any], state: Mapping[str, Any], *, strict: bool
) -> None:
    """Set all these tensors, or none if one does not fit.

    Args:
        what: has the state, for messages.
        own: its tensors, by name.
        extra: the modules with a state other than tensors, by the name of that.
        state, strict: see `Module.load_state_dict`.
    """
    missing, unexpected = own.keys() - state.keys(), state.keys() - own.keys() - extra.keys()
    if strict and (missing or unexpected):
        raise KeyError(
            f"the state does not fit {what}: missing {sorted(missing)}, unexpected"
            f" {sorted(unexpected)}; with strict=False these are left out"
        )
    found = [(own[name], state[name], name) for name in own if name in state]
    for parameter, given, name in found:
        _check(parameter, given, name)
    for name in extra.keys() & state.keys():  # first, since it may refuse what it is given
        extra[name].set_extra_state(state[name])
    for parameter, given, _ in found:
        parameter._value = given._value


def _check(parameter: Tensor, given: object, name: str) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(f"{name}: a state holds tensors, not {type(given).__name__}: `await s.put(a)` makes one")
    if given.shape != parameter.shape or given.dtype != parameter.dtype:
        raise ValueError(
            f"{name}: the state has {given.shape} in {given.dtype}, the module {parameter.shape} in {parameter.dtype}"
        )
    if given.device is not parameter.device:
        raise ValueError(
            f"{name}: the state is on {given.device}, the module on {parameter.device}, perhaps of different"
            " schedulers: use `t.to(device)`, or `load(path, scheduler=...)`"
        )

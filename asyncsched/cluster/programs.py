"""Operations and captured programs on their way to a worker.

Operations of the table travel by name, since the worker has the same table. A captured step travels as its program,
pickled once, which the worker keeps: it comes again and again.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..devices.host.pool import Pool
from ..ops.fused import FusedProgram
from ..ops.meta import Meta, meta
from ..ops.op import Op
from ..ops.packed import UNPACK, UNPACK_FOUND
from ..ops.program import Program
from ..ops.table import TABLE

_KEPT_PROGRAMS = 64
_KEPT_BYTES = 128 * 2**20  # a guess, as the other
# Buffers of intermediate results, used again: Dask has its workers give freed memory back to the system at once, so
# new ones would cost a page fault for every 4 KiB.
_buffers = Pool(_KEPT_BYTES)
_UNPACKING = {op.name: op for op in (UNPACK, UNPACK_FOUND)}


class Fused:
    """A captured program as a worker runs it. Pickled once, whatever the number of its replays."""

    def __init__(self, program: Program) -> None:
        from cloudpickle import dumps

        self._pickled: bytes = dumps(program)

    def __call__(self, xp: Any, arrays: Sequence[Any], outs: Sequence[Any] | None = None) -> list[Any]:
        if xp is np:
            return _fused(self._pickled).run(xp, arrays, outs)
        return _program(self._pickled).run(xp, arrays)


@lru_cache(_KEPT_PROGRAMS)
def _program(pickled: bytes) -> Program:
    from pickle import loads

    found: Program = loads(pickled)
    return found


@lru_cache(_KEPT_PROGRAMS)
def _fused(pickled: bytes) -> FusedProgram:
    return FusedProgram(_program(pickled), _buffers.take, _buffers.give)


def is_captured(op: Op) -> bool:
    """Whether it is a captured step's, and no operation of the table."""
    return op.out and op.name not in TABLE


def _op(name: str, exactly: bool) -> Op:
    op = _UNPACKING[name] if name in _UNPACKING else TABLE[name]
    return (op.exact or op) if exactly else op


def _reduce_op(op: Op) -> tuple[Callable[..., Op], tuple[Any, ...]]:
    known = _UNPACKING.get(op.name) or TABLE.get(op.name)
    if known is not None and op in (known, known.exact):
        return _op, (op.name, op is not known)
    return Op, (op.name, op.kernel, None)  # of a captured step; nobody asks its rule


def _reduce_meta(form: Meta) -> tuple[Callable[..., Meta], tuple[Any, ...]]:
    return meta, (form.shape, form.dtype, form.contiguous, None if form.known else form.bound)


copyreg.pickle(Op, _reduce_op)
copyreg.pickle(Meta, _reduce_meta)

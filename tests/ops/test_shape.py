"""Views, joins and repetitions."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import in_every_layout, layouts, values


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("broadcast_to", {"shape": (2, 3, 4)}),
        ("broadcast_to", {"shape": (5,)}),
        ("expand_dims", {"axis": 0}),
        ("expand_dims", {"axis": (1, -1)}),
        ("expand_dims", {"axis": 9}),
        ("flip", {"axis": None}),
        ("flip", {"axis": (0, 1)}),
        ("flip", {"axis": 0}),
        ("permute_dims", {"axes": (1, 0)}),
        ("permute_dims", {"axes": (2, 0, 1)}),
        ("permute_dims", {"axes": (0, 0)}),
        ("squeeze", {"axis": 0}),
        ("squeeze", {"axis": 1}),
        ("squeeze", {"axis": (0, 5)}),
        ("matrix_transpose", {}),
    ],
)
@in_every_layout
def test_views(check, name, options, layout):
    for dtype in ("f4", "c16", "?"):
        x = layouts(dtype)[layout]
        found = check(name)(lambda x=x: getattr(np, name)(x, **options), x, **options)
        assert found is None or found.nbytes == found.workspace == 0


@pytest.mark.parametrize("shape", [(-1,), (4, 3), (2, 6), (12, 1), (3, -1, 2), (24,), (-1, -1), (0, 7), (), (1, 1, 4)])
@in_every_layout
def test_reshape(check, shape, layout):
    x = layouts("f4")[layout]
    found = check("reshape")(lambda: np.reshape(x, shape), x, shape=shape)
    if found is not None:
        assert found.nbytes == (0 if x.flags.c_contiguous else x.nbytes)
    check("reshape")(lambda: np.reshape(x, shape, copy=True), x, shape=shape, copy=True)


@pytest.mark.parametrize("axis", [0, 1, -1, None, 7])
@in_every_layout
def test_concat(check, axis, layout):
    x = layouts("f4")[layout]
    for y in (x, layouts("f8")[layout], values((3, 4), "i1"), values((1, 4), "f4"), values((4,), "f4")):
        check("concat")(lambda y=y: np.concatenate([x, y], axis=axis), x, y, axis=axis)
        check("concat")(lambda y=y: np.concatenate([x, y, x], axis=axis), x, y, x, axis=axis)
    check("concat")(lambda: np.concatenate([], axis=axis), axis=axis)


@pytest.mark.parametrize("axis", [0, 1, -1, 2, 7])
@in_every_layout
def test_stack(check, axis, layout):
    x = layouts("f4")[layout]
    for y in (x, layouts("i8")[layout], values((3, 4), "f4")):
        check("stack")(lambda y=y: np.stack([x, y], axis=axis), x, y, axis=axis)
    check("stack")(lambda: np.stack([], axis=axis), axis=axis)


@pytest.mark.parametrize("repeats", [0, 1, 3, -1])
@in_every_layout
def test_repeat(check, repeats, layout):
    x = layouts("f4")[layout]
    if not x.size and repeats < 0:
        pytest.skip("NumPy makes nothing of a negative number of nothing")
    for axis in (None, 0, -1, 5):
        check("repeat")(lambda a=axis: np.repeat(x, repeats, axis=a), x, repeats=repeats, axis=axis)


@pytest.mark.parametrize("repetitions", [(), (1,), (2,), (2, 3), (1, 1, 1, 1), (2, 1, 3, 1), (0, 2), (-1,)])
@in_every_layout
def test_tile(check, repetitions, layout):
    x = layouts("f4")[layout]
    if not x.size and -1 in repetitions:
        pytest.skip("NumPy makes nothing of a negative number of nothing")
    check("tile")(lambda: np.tile(x, repetitions), x, repetitions=repetitions)


@pytest.mark.parametrize(
    ("shift", "axis"), [(1, None), (-2, 0), (1, -1), ((1, 2), (0, 1)), (1, (0, 1)), ((1, 2), (0, 1, 1)), (3, 9)]
)
@in_every_layout
def test_roll(check, shift, axis, layout):
    x = layouts("f4")[layout]
    check("roll")(lambda: np.roll(x, shift, axis=axis), x, shift=shift, axis=axis)

"""Plans: what they are cached by, unknown lengths, what is small, and what Python integers may be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import values

from asyncsched.ops import TABLE, Op, encode_key, meta, plan, plan_key, resolve
from asyncsched.ops import op as op_module
from asyncsched.ops.op import Inferred

F4 = np.dtype("f4")
MATRIX = meta((3, 4), F4)


def masked(bound: int, *rest: int, dtype: str = "f4"):
    """The meta of what a mask selects: at most `bound` rows."""
    return meta((None, *rest), np.dtype(dtype), True, (bound, *rest))


def planned(name, *operands, **options):
    return plan(TABLE[name], operands, options)


def test_metas_are_interned():
    assert meta((3, 4), F4) is MATRIX
    assert meta((3, 4), F4, False) is not MATRIX


def test_the_key_of_two_operands():
    assert plan_key((MATRIX, 2.0), {}) == (MATRIX, float)
    assert plan_key((MATRIX, True), {}) == (MATRIX, bool)
    assert plan_key((np.float64(2), MATRIX), {}) == (np.dtype("f8"), MATRIX)
    assert plan_key((MATRIX,), {}) == (MATRIX,)


def test_options_are_told_apart_by_type():
    keys = {plan_key((MATRIX,), {"axis": axis}) for axis in (0, 0.0, False, None)}
    assert len(keys) == 4
    assert planned("sum", MATRIX, axis=0).meta.shape == (4,)
    with pytest.raises(TypeError):
        planned("sum", MATRIX, axis=0.0)


def test_an_operand_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="is not an operand"):
        planned("add", MATRIX, "2")


def test_plans_are_made_once():
    calls = []

    def rule(op, operands, options):
        calls.append(operands)
        return Inferred(operands[0])

    op = Op("probe", "add", rule)
    assert plan(op, (MATRIX, 2), {}) is plan(op, (MATRIX, 3), {})
    assert plan(op, (MATRIX, 2.0), {}) is not plan(op, (MATRIX, 3), {})
    assert len(calls) == 2


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(op_module, "_PLAN_LIMIT", 8)
    op = Op("probe", "add", lambda op, operands, options: Inferred(operands[0]))
    for axis in range(100):
        plan(op, (MATRIX,), {"axis": axis})
    assert len(op.plans) <= 8


def test_the_cache_of_operators_is_bounded_too(monkeypatch):
    monkeypatch.setattr(op_module, "_PLAN_LIMIT", 8)
    op = Op("probe", "add", lambda op, operands, options: Inferred(operands[0]))
    for length in range(1, 100):
        operands = meta((length,), F4), 2.0
        assert op.with_number[float].get(operands[0]) is None
        assert plan(op, operands, {}) is op.with_number[float][operands[0]]
    assert len(op.with_number[float]) <= 8
    assert not op.with_number[int]


@pytest.mark.parametrize("operands", [(MATRIX, True), (2, MATRIX), (MATRIX, np.float32(2)), (MATRIX, 2)])
def test_an_operator_looks_up_no_plan_that_is_not_for_every_number_of_the_type(operands):
    """With bounds for integers it is not: each number is checked."""
    op = Op("probe", "add", lambda op, operands, options: Inferred(MATRIX, int_bounds=(0, 9)))
    plan(op, operands, {})
    assert op.with_number == {int: {}, float: {}}


def test_a_row_made_of_another_has_plans_of_its_own():
    op = Op("probe", "add", lambda op, operands, options: Inferred(MATRIX))
    plan(op, (MATRIX, 2), {})
    assert op.with_number[int]
    assert not replace(op, kernel="subtract").with_number[int]


F8, F2, C16, BYTE = (np.dtype(name) for name in ("f8", "f2", "c16", "i1"))
LINE = meta((2048,), F4)
QUICK = [
    planned("add", meta((1 << 14,), F4), 1),
    planned("exp", meta((4096,), F4)),
    planned("sin", meta((512,), F8)),
    planned("sum", meta((1 << 14,), F4)),
    planned("max", meta((1 << 15,), BYTE)),  # much to read, and little to make
    planned("matmul", meta((8, 64), F4), meta((64, 128), F4)),
    planned("sort", meta((128,), F4)),
    planned("inv", meta((4, 4), F8)),
    planned("median", meta((128,), F4)),  # nothing is known of its time, and it is tiny
    planned("linear", meta((8, 32), F4), meta((64, 32), F4), meta((64,), F4)),
    planned(
        "getitem", meta((1 << 20, 4), F4), key=encode_key((slice(None), 1), type(None))[0]
    ),  # a view of something large
]
SLOW = [
    planned("add", meta((1 << 15,), F4), 1),  # nearly as quick, but fresh memory of this size is not
    planned("sin", LINE),
    planned("exp", meta((2048,), C16)),
    planned("add", meta((1 << 13,), F2), 1),
    planned("multiply", meta((1 << 14,), F8), 1),
    planned("sqrt", meta((1 << 13,), F4, False)),
    planned("matmul", meta((64, 64), F4), meta((64, 128), F4)),
    planned("matmul", meta((1, 1 << 18), F4), meta((1 << 18, 1), F4)),  # a number
    planned("sort", LINE),
    planned("sort", meta((1000,), F4)),
    planned("det", meta((20, 20), F8)),
    planned("var", meta((8192,), BYTE)),
    planned("median", meta((1024,), F4)),
]


@pytest.mark.parametrize("found", QUICK)
def test_an_operation_shorter_than_a_hop_may_run_inline(found):
    assert found.quick


@pytest.mark.parametrize("found", SLOW)
def test_a_longer_operation_may_not_run_inline(found):
    assert not found.quick


def test_time_beyond_a_tasks_own_cost_counts():
    assert planned("add", LINE, 1).seconds == 0
    longer = [planned("log", meta((n,), F4)).seconds for n in (1024, 2048, 4096, 6000)]
    assert longer[0] == 0 < longer[1] < longer[2] < longer[3] < 15e-6
    assert planned("log", meta((1024,), F4, False)).seconds > longer[1]


def test_integers_are_checked_each_time():
    bytes_ = meta((3,), np.dtype("u1"))
    assert planned("add", bytes_, 255).int_bounds == (0, 255)
    with pytest.raises(OverflowError, match="256 out of bounds"):
        planned("add", bytes_, 256)
    assert planned("less", bytes_, 300).int_bounds is None
    assert planned("add", MATRIX, 2**70).int_bounds is None


@pytest.mark.parametrize(
    ("name", "operands", "options", "shape", "bound"),
    [
        ("add", (masked(5), 1), {}, (None,), (5,)),
        ("add", (masked(5), masked(5)), {}, (None,), (5,)),
        ("add", (masked(5, 1), meta((4,), F4)), {}, (None, 4), (5, 4)),
        ("sum", (masked(5, 3),), {"axis": 0}, (3,), (3,)),
        ("sum", (masked(5, 3),), {"axis": 1}, (None,), (5,)),
        ("max", (masked(5),), {}, (), ()),
        ("max", (masked(1),), {}, (), ()),
        ("mean", (masked(1),), {}, (), ()),
        ("matmul", (masked(5, 4), meta((4, 2), F4)), {}, (None, 2), (5, 2)),
        ("reshape", (masked(6, 2),), {"shape": (-1,)}, (None,), (12,)),
        ("concat", (masked(5), meta((3,), F4)), {"axis": 0}, (None,), (8,)),
        ("getitem", (masked(5),), {"key": encode_key(slice(None, 3), list)[0]}, (None,), (3,)),
        ("getitem", (masked(5),), {"key": encode_key(slice(-1, None), list)[0]}, (None,), (1,)),
        ("getitem", (masked(5, 2),), {"key": (3,)}, (2,), (2,)),
        ("argwhere", (masked(5, 2),), {}, (None, 2), (10, 2)),
        ("getitem_advanced", (MATRIX, masked(7, dtype="i8")), {"key": ("tensor",)}, (None, 4), (7, 4)),
        ("full_like", (masked(5), 0), {}, (None,), (5,)),
        ("add", (masked(0), 1), {}, (0,), (0,)),
        ("sum", (masked(0),), {}, (), ()),
        ("matmul", (masked(0, 4), meta((4, 2), F4)), {}, (0, 2), (0, 2)),
    ],
)
def test_unknown_lengths(name, operands, options, shape, bound):
    found = planned(name, *operands, **options)
    assert (found.meta.shape, found.meta.bound) == (shape, bound)
    assert not found.quick or None not in shape
    assert found.nbytes == (0 if TABLE[name].view else found.meta.nbytes)


@pytest.mark.parametrize(
    ("name", "operands", "options", "shape", "bound"),
    [
        ("add", (masked(5), meta((5,), F4)), {}, (5,), (5,)),
        ("add", (masked(5), meta((3,), F4)), {}, (3,), (3,)),
        ("add", (masked(1), meta((5,), F4)), {}, (5,), (5,)),
        ("add", (masked(5), masked(3)), {}, (None,), (5,)),
        ("add", (masked(5), meta((4, 1), F4)), {}, (4, None), (4, 5)),
        ("where", (masked(5, dtype="?"), masked(3), masked(7)), {}, (None,), (7,)),
        ("stack", (masked(5), masked(3)), {"axis": 0}, (2, None), (2, 5)),
        ("concat", (masked(5, 3), masked(4, 3)), {"axis": 1}, (None, 6), (5, 6)),
        ("matmul", (masked(4), meta((4,), F4)), {}, (), ()),
        ("reshape", (masked(6),), {"shape": (2, 3)}, (2, 3), (2, 3)),
        ("reshape", (masked(7),), {"shape": (2, -1)}, (2, None), (2, 3)),
        ("max", (masked(0),), {}, (), ()),
        ("getitem", (masked(5),), {"key": (5,)}, (), ()),
        ("squeeze", (masked(1),), {"axis": 0}, (), ()),
        ("sliding_window_view", (masked(5),), {"window_shape": (7,), "axis": (0,)}, (None, 7), (0, 7)),
    ],
)
def test_lengths_that_fit_are_planned_for(name, operands, options, shape, bound):
    """Whether the data has them is known at `await`."""
    found = planned(name, *operands, **options)
    assert (found.meta.shape, found.meta.bound) == (shape, bound)


@pytest.mark.parametrize(
    ("name", "operands", "options"),
    [
        ("add", (masked(5, 3), meta((4,), F4)), {}),
        ("reshape", (masked(6, 2),), {"shape": (3, 3)}),
        ("concat", (masked(5, 3), masked(5, 4)), {"axis": 0}),
        ("getitem", (masked(5, 3),), {"key": (0, 3)}),
    ],
)
def test_what_no_length_makes_right_raises_at_the_line(name, operands, options):
    with pytest.raises(ValueError, match="`await` it first"):
        planned(name, *operands, **options)


def test_every_length_up_to_the_bound_keeps_the_promise():
    """What is planned for an unknown length holds for each length it may turn out to be."""
    for name, options in (
        ("sum", {"axis": 0}),
        ("getitem", {"key": encode_key((slice(None, 3), slice(1, None)), list)[0]}),
        ("flip", {"axis": 0}),
        ("sort", {"axis": 0}),
        ("tile", {"repetitions": (2, 1)}),
        ("matrix_transpose", {}),
        ("cumulative_sum", {"axis": 1, "include_initial": True}),
    ):
        found = planned(name, masked(5, 4), **options)
        for length in range(6):
            result = resolve(TABLE[name], np)(values((length, 4), "f4"), **options)
            for known, bound, actual in zip(found.meta.shape, found.meta.bound, result.shape, strict=True):
                assert actual <= bound if known is None else actual == known
            assert result.flags.c_contiguous or not found.meta.contiguous


def test_every_row_is_documented_and_named():
    for name, op in TABLE.items():
        assert op.name == name
        assert op.doc.endswith(".")
        assert "\n" not in op.doc
        assert not (op.inplace and not op.out)


def test_kernels_are_bound_once():
    op = TABLE["where"]
    assert resolve(op, np) is resolve(op, np)
    assert resolve(TABLE["add"], np) is np.add

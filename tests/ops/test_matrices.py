"""Linear algebra: rows against eager NumPy, several results at once, and errors at the line."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pytest
from conftest import assert_same, values
from numpy.linalg import LinAlgError
from numpy.testing import assert_array_equal

import asyncsched as asc
from asyncsched.ops.kernels.products import einsum_letters
from asyncsched.ops.table import TABLE
from tests.waiting import held

pytestmark = pytest.mark.one_loop

SHAPES = ((4, 4), (2, 3, 3), (1, 1), (0, 0), (3, 0, 0), (2, 5, 3), (3, 5), (4,), ())
OF_ONE = ("inv", "det", "eigvalsh", "svdvals", "matrix_norm", "cholesky", "pinv", "matrix_rank", "eigvals")
SEVERAL = ("eigh", "qr", "svd", "slogdet", "eig")
OLD = np.lib.NumpyVersion(np.__version__) < "2.4.0"
DTYPES = ("f4", "f8", "c8", "i8", "?", "f2")


def matrices(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Positive definite where they are square."""
    x = values(shape, dtype, seed)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return x
    if dtype == "?":
        return np.broadcast_to(np.eye(shape[-1], dtype=bool), shape).copy()
    return (x @ np.swapaxes(x, -1, -2).conj() + 9 * np.eye(shape[-1])).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OF_ONE)
def test_rows_of_one_result(check, name, shape):
    eager = getattr(np.linalg, name)
    for dtype in DTYPES:
        for x in (matrices(shape, dtype), np.asfortranarray(matrices(shape, dtype))):
            if name == "eigvals":
                check(name)(lambda x=x: eager(x).astype(np.result_type(eager(x), np.complex64)), x)
            # NumPy has ranks of vectors; the standard has none. And before 2.4 it has none of what is empty.
            elif not (name == "matrix_rank" and (x.ndim < 2 or (not x.size and OLD))):
                check(name)(lambda x=x: eager(x), x, **({"ord": "fro"} if name == "matrix_norm" else {}))


@pytest.mark.parametrize("first", SHAPES)
@pytest.mark.parametrize("second", SHAPES[:-1])
def test_solve(check, first, second):
    x, y = matrices(first, "f8"), values(second, "f4", 1)
    check("solve")(lambda: np.linalg.solve(x, y), x, y)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize(
    "shapes", [((3,), (3,)), ((4, 3), (4, 3)), ((3, 3), (1, 3)), ((2, 3), (3, 2)), ((2, 3, 3), (3, 3))]
)
def test_cross(check, shapes, axis):
    for dtype in ("f4", "i4", "c8"):
        x, y = values(shapes[0], dtype), values(shapes[1], "f8", 1)
        check("cross")(lambda x=x, y=y: np.linalg.cross(x, y, axis=axis), x, y, axis=axis)


@pytest.mark.parametrize("offset", [-5, -1, 0, 2])
def test_diagonals(check, offset):
    for dtype in ("f4", "i4", "?"):
        for x in (values((3, 4), dtype), values((2, 4, 3), dtype)[:, ::-1], np.asfortranarray(values((3, 3), dtype))):
            check("diagonal")(lambda x=x: np.linalg.diagonal(x, offset=offset), x, offset=offset)


@pytest.mark.parametrize("offset", [-5, -1, 0, 2])
async def test_traces(s, offset):
    for dtype in ("f2", "f4", "i4", "?", "c8"):
        for a in (values((3, 4), dtype), values((2, 4, 3), dtype)[:, ::-1], np.asfortranarray(values((9, 9), dtype))):
            x = await s.put(a)
            assert_same(await asc.linalg.trace(x, offset=offset), np.asarray(np.linalg.trace(a, offset=offset)))
            found = asc.linalg.trace(x, offset=offset, dtype="c16")
            assert_same(await found, np.asarray(np.linalg.trace(a, offset=offset, dtype="c16")))


@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 3, 7])
def test_powers(check, n):
    for dtype in ("f4", "i8", "c8"):
        x = matrices((2, 3, 3), dtype)
        if n >= 0 or dtype != "i8":
            check("matrix_power")(lambda x=x: np.linalg.matrix_power(x, n), x, n=n)


@pytest.mark.parametrize("order", [0, 1, 2, 3.5, -1, np.inf, -np.inf])
def test_vector_norms(check, order):
    for dtype in ("f4", "f2", "c8", "i4"):
        for axis in (None, 0, -1, (0, 2), (2, 1)):
            for keepdims in (False, True):
                x, options = values((2, 3, 4), dtype) + 1, {"axis": axis, "keepdims": keepdims, "ord": order}
                for some in (x, x[:0], x[:, :0]):  # norms of nothing, and no norms
                    check("vector_norm")(lambda x=some, o=options: np.linalg.vector_norm(x, **o), some, **options)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_matrix_norms(check, order):
    for dtype in ("f4", "c8", "i4"):
        for keepdims in (False, True):
            x, options = values((2, 3, 4), dtype), {"keepdims": keepdims, "ord": order}
            check("matrix_norm")(lambda x=x, o=options: np.linalg.matrix_norm(x, **o), x, **options)


@pytest.mark.parametrize("shapes", [((4,), (3,)), ((0,), (3,)), ((2, 2), (3,)), ((), (3,))])
def test_outer(check, shapes):
    for dtype in ("f4", "i4", "c8"):
        x, y = values(shapes[0], dtype), values(shapes[1], "f8", 1)
        check("outer")(lambda x=x, y=y: np.linalg.outer(x, y), x, y)


@pytest.mark.parametrize("first", [(4,), (3, 4), (2, 3, 4), (), (0, 4)])
@pytest.mark.parametrize("second", [(4,), (4, 3), (2, 4, 3), (), (5, 4)])
def test_dot(check, first, second):
    for dtype in ("f4", "i4", "c8"):
        for x in (values(first, dtype), np.asfortranarray(values(first, dtype))):
            y = values(second, "f8", 1)
            check("dot")(lambda x=x, y=y: np.dot(x, y), x, y)


EINSUMS = (
    ("ij,jk->ik", (3, 4), (4, 2)),
    ("ij,jk", (3, 4), (4, 2)),
    ("ij,kj->", (3, 4), (2, 4)),
    ("...j,j->...", (2, 3, 4), (4,)),
    ("...j,...j", (2, 3, 4), (1, 4)),
    ("ii->i", (3, 3)),
    ("ba", (3, 4)),
    ("ij,ij->ji", (3, 4), (3, 4)),
    ("ij,jk", (3, 4), (3, 4)),
    ("ij->ik", (3, 4)),
    ("ij,jk", (3, 4)),
    ("i", (3, 4)),
)


@pytest.mark.parametrize(("subscripts", "first", "more"), [(text, first, more) for text, first, *more in EINSUMS])
async def test_einsum(s, subscripts, first, more):
    for dtype in ("f4", "c8", "i4"):
        arrays = [values(shape, dtype, i) for i, shape in enumerate((first, *more))]
        tensors = [await s.put(a) for a in arrays]
        try:
            expected = np.einsum(subscripts, *arrays)
        except ValueError:
            with pytest.raises(ValueError, match="einsum"):
                asc.einsum(subscripts, *tensors)
            continue
        found = asc.einsum(subscripts, *tensors)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert (await found).tobytes() == expected.tobytes()


def test_letters_of_einsum():
    assert einsum_letters("...ab,b...", (3, 2)) == (["0ab", "b0"], "0a")
    assert einsum_letters("ab,bc->ca", (2, 2)) == (["ab", "bc"], "ca")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SEVERAL)
async def test_rows_of_several_results(s, name, shape):
    for dtype in DTYPES:
        for array in (matrices(shape, dtype), np.asfortranarray(matrices(shape, dtype))):
            x = await s.put(array)
            try:
                expected = getattr(np.linalg, name)(array)
            except (LinAlgError, TypeError) as error:
                with pytest.raises(type(error)):
                    getattr(asc.linalg, name)(x)
                continue
            found = getattr(asc.linalg, name)(x)
            assert found._fields == expected._fields
            for got, like in zip(found, expected, strict=True):
                like = np.asarray(like, np.result_type(like, np.complex64) if name == "eig" else None)
                assert (got.shape, got.dtype) == (like.shape, like.dtype)
                if name == "qr":  # of a stack in Fortran's order NumPy's parts are so, too; here all are in C order
                    like = np.ascontiguousarray(like)
                assert_same(await got, like)


async def test_options_of_decompositions(s):
    a = values((2, 5, 3), "f8")
    x = await s.put(a)
    for got, like in zip(asc.linalg.svd(x, full_matrices=False), np.linalg.svd(a, full_matrices=False), strict=True):
        assert_same(await got, like)
    for got, like in zip(asc.linalg.qr(x, mode="complete"), np.linalg.qr(a, mode="complete"), strict=True):
        assert_same(await got, like)
    spd = matrices((3, 3), "c8")
    assert_same(await asc.linalg.cholesky(await s.put(spd), upper=True), np.linalg.cholesky(spd, upper=True))
    assert_same(await asc.linalg.pinv(x, rtol=0.5), np.linalg.pinv(a, rtol=0.5))
    rounded = (values((5, 2), "f8") @ values((2, 4), "f8")).astype(np.float32)  # of rank 2, but for rounding
    assert abs(await asc.linalg.pinv(await s.put(rounded))).max() < 1e3
    tolerance = await s.put(np.array([0.5, 0.0]))
    assert_same(await asc.linalg.matrix_rank(x, rtol=tolerance), np.linalg.matrix_rank(a, rtol=np.array([0.5, 0.0])))
    with pytest.raises(ValueError, match="mode must be"):
        asc.linalg.qr(x, mode="raw")


async def test_errors_that_depend_on_the_numbers_are_raised_at_the_await(s):
    singular = asc.linalg.inv(await s.put(np.ones((2, 2))))
    with pytest.raises(LinAlgError, match="Singular"):
        await singular
    q, r = asc.linalg.qr(asc.linalg.cholesky(await s.put(-np.eye(200))))
    with pytest.raises(LinAlgError):
        await r
    with pytest.raises(LinAlgError):
        await q


async def test_shapes_and_dtypes_raise_at_the_line(s):
    x = await s.put(np.ones((2, 3)))
    with pytest.raises(LinAlgError, match=r"inv: the last two dimensions must be square, not of shape \(2, 3\)"):
        asc.linalg.inv(x)
    with pytest.raises(ValueError, match="do not match"):
        asc.linalg.solve(x @ x.mT, x.mT)
    with pytest.raises(TypeError, match=r"float16 is unsupported .*astype"):
        asc.linalg.svd(x.astype("f2"))


async def test_a_matrix_of_unknown_shape_is_refused_until_it_is_there(gate):
    async with asc.Scheduler("cpu", streams=1) as s:
        x = await s.put(np.ones((2, 3)))
        busy = await s.submit(held, gate)
        row = asc.expand_dims(x[x > 0], 0)
        with pytest.raises(ValueError, match="is not known until"):
            asc.linalg.qr(row)
        gate.set()
        await busy
        assert [part.shape for part in asc.linalg.qr(await s.put(await row))] == [(1, 1), (1, 6)]


async def test_several_results_are_awaited_together(s):
    a = values((4, 4), "f8")
    x = await s.put(a @ a.T)
    for fn in (asc.linalg.svd, asc.linalg.qr, asc.linalg.eig, asc.linalg.eigh, asc.linalg.slogdet):
        both = fn(x)
        found = await both
        assert type(found) is type(both)
        for got, expected in zip(found, await asc.gather(*both), strict=True):
            np.testing.assert_array_equal(got, expected)
    for fn in (asc.unique_all, asc.unique_counts, asc.unique_inverse):
        found = await fn(await s.put(np.array([3, 1, 3])))
        assert found.values.tolist() == [1, 3]


async def test_an_error_of_several_results_holds_none_of_them(s):
    results = asc.linalg.svd(await s.put(np.full((5, 5), np.nan)))
    left = weakref.ref(results.U)
    with pytest.raises(np.linalg.LinAlgError) as caught:
        await results
    del results
    gc.collect()
    assert caught.value is not None
    assert left() is None


async def test_several_results_are_one_task_whose_bytes_come_back(s):
    x = await s.put(values((60, 50), "f8"))
    before = s.statistics()
    u, singular, vh = asc.linalg.svd(x)
    await s.barrier()
    assert s.statistics().tasks_submitted - before.tasks_submitted == 4  # the decomposition, and three views of it
    packed = s.statistics().bytes_retained - before.bytes_retained
    assert packed >= u.nbytes + singular.nbytes + vh.nbytes
    del u, vh
    assert s.statistics().bytes_retained - before.bytes_retained == packed  # what is left shows the same buffer
    del singular
    gc.collect()
    assert s.statistics().bytes_retained == before.bytes_retained


async def test_a_gradient_is_not_lost_in_a_decomposition(s):
    x = await s.put(np.eye(3))
    x.requires_grad = True
    with pytest.raises(
        NotImplementedError, match=r"eig: no derivative is known for complex numbers: use `t.detach\(\)`"
    ):
        asc.linalg.eig(x)
    with asc.no_grad():
        assert not asc.linalg.eig(x)[0].requires_grad
        assert not asc.linalg.svd(x)[0].requires_grad
    for result in (*asc.linalg.svd(x), *asc.linalg.qr(x), *asc.linalg.eigh(x), *asc.linalg.slogdet(x)):
        assert result.requires_grad
    for message, result in (
        (r"qr: no derivative is known for \(2, 3\) with mode='reduced'", asc.linalg.qr(x[:2])[0]),
        (r"qr: no derivative is known for \(3, 2\) with mode='complete'", asc.linalg.qr(x[:, :2], mode="complete")[1]),
        ("svd: no derivative is known of vectors with full_matrices=True", asc.linalg.svd(x[:, :2])[2]),
    ):
        with pytest.raises(NotImplementedError, match=message):
            result.sum().backward()
    with pytest.raises(NotImplementedError, match="unique_counts"):
        asc.unique_counts(x)
    await s.barrier()


async def test_rows_of_linear_algebra_can_be_captured(s):
    x = await s.put(matrices((3, 3), "f8"))
    graph = await s.capture(lambda x: (asc.linalg.inv(x), asc.linalg.eigh(x)[0]), x)
    array = matrices((3, 3), "f8", 1)
    inverse, eigenvalues = graph(await s.put(array))
    assert_same(await inverse, np.linalg.inv(array))
    assert_same(await eigenvalues, np.linalg.eigh(array)[0])


async def test_where_results_lie_is_found_once(s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each shape, dtype and set of options, whose results are not taken for one another's."""
    row, asked = TABLE["qr"], []
    counting = dataclasses.replace(row, rule=lambda *given: asked.append(given) or row.rule(*given))
    monkeypatch.setitem(TABLE, "qr", counting)
    for _ in range(3):
        for a in (np.ones((4, 3)), np.ones((4, 3), np.float32), np.ones((5, 3))):
            x = await s.put(a)
            for mode in ("reduced", "complete"):
                for got, like in zip(asc.linalg.qr(x, mode=mode), np.linalg.qr(a, mode=mode), strict=True):
                    assert (got.shape, got.dtype) == (like.shape, like.dtype)
                    assert_array_equal(await got, like)
    assert len(asked) == 6

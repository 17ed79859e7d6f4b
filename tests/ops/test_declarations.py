"""An operation is declared once: nothing else in the package is decided by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import asyncsched
from asyncsched.ops import TABLE, Blas, Cut, Op, cut, meta, parallel, plan, resolve
from asyncsched.ops.declare import elementwise
from asyncsched.ops.kernels.elementwise import by_sample_rule
from asyncsched.ops.op import PRODUCTS

PACKAGE = Path(asyncsched.__file__).parent
# Where names of operations may be listed, and why.
MAY_LIST_NAMES = {
    "ops/kernels": "the declarations",
    "autograd": "the derivatives, by name",
    "nn": "functions that users call, which call operations by name, and derivatives of those",
    "tensors": "the same, and the tensor's methods and operators",
    "array_api": "the names of the standard",
    "optim": "calls operations by name",
    "_instead.py": "names of other libraries",
    "gpu_check": "calls operations by name, on a card and beside it",
    "__main__.py": "commands, one of which has the name of an operation",
}
FILES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not any(path.relative_to(PACKAGE).as_posix().startswith(place) for place in MAY_LIST_NAMES)
]


def is_name(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in TABLE


def decided_by_names(tree: ast.AST) -> Iterator[ast.AST]:
    """Tables, sets, lists and texts of names of operations, and comparisons with one."""
    for node in ast.walk(tree):
        members: list[ast.expr | None] = []
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            members = list(node.elts)
        elif isinstance(node, ast.Dict):
            members = node.keys
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            members = [ast.Constant(word) for word in node.value.split()]
        elif isinstance(node, ast.Compare):
            members = [one for one in (node.left, *node.comparators) if is_name(one)]
        elif isinstance(node, ast.MatchValue):
            members = [node.value]
        if members and all(map(is_name, members)):
            yield node


def test_nothing_is_decided_by_the_name_of_an_operation():
    found = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path in FILES
        for node in decided_by_names(ast.parse(path.read_text()))
    ]
    assert found == []


def test_the_check_above_finds_errors():
    source = """
FAST = {"add", "exp"}
SECONDS = {"add": 1.0, "exp": 2.0}
LISTED = "add exp".split()
def of(op, reduction):
    if op.name == "relu" or op.name in ("add", "exp"):
        return "relu"
    label = "repeat " + str(reduction)
    return reduction in ("mean", "sum", "none")
"""
    found = [ast.unparse(node) for node in decided_by_names(ast.parse(source))]
    assert len(found) == 5


def cube(xp, x, *, out=None):
    """A kernel that may be cut anywhere."""
    out = xp.square(x, out=xp.empty_like(x) if out is None else out)
    return xp.multiply(out, x, out=out)


CUBE = elementwise(cube, by_sample_rule, "The third power.", 1e-9)
FORGETFUL = Op("cube", cube, by_sample_rule, out=True)


@pytest.fixture
def of_two(monkeypatch):
    """Work is shared by two threads."""
    monkeypatch.setattr(parallel.here, "threads", 2)


@pytest.mark.usefixtures("of_two")
def test_undeclared_properties_show_in_the_operations_behaviour():
    x = np.ones((2000, 2000), np.float32)
    form, small = meta(x.shape, x.dtype), meta((2000,), x.dtype)
    assert len(cut.parts(CUBE, resolve(CUBE, np), (x,), x)) > 1
    assert cut.parts(FORGETFUL, resolve(FORGETFUL, np), (x,), x) == []
    assert plan(CUBE, (small,), {}).quick
    assert not plan(FORGETFUL, (small,), {}).quick
    assert plan(CUBE, (form,), {}).estimate < plan(FORGETFUL, (form,), {}).estimate


@pytest.mark.parametrize("name", [name for name, op in TABLE.items() if op.ufunc])
def test_the_universal_function_of_an_operation_has_its_bits(name):
    op = TABLE[name]
    x = np.random.default_rng(0).standard_normal(40_000).astype("f4")
    x[:5] = -0.0, 0.0, np.nan, np.inf, -np.inf
    assert resolve(op, np)(x).tobytes() == getattr(np, op.ufunc.ufunc)(x, *op.ufunc.arguments).tobytes()


def test_products_are_whole_inside_exact_and_have_a_blas_at_work_everywhere():
    products = [op for op in TABLE.values() if op.cut in PRODUCTS]
    assert products
    for op in products:
        assert op.exact is not None
        assert op.exact.cut is Cut.WHOLE
        assert op.blas is op.exact.blas is Blas.PRODUCT

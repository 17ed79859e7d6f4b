"""The operations as plain data: one table, with a kernel, a shape rule and byte costs for each."""

from .cost_model import SMALL_BYTES
from .index_keys import Key, encode_key
from .kernels.elementwise import power_op
from .meta import Meta, Shape, meta
from .op import Blas, Bound, Cut, Op, Operand, Options, Plan, check_int_bounds, exact, plan, plan_key, resolve
from .table import TABLE

__all__ = [
    "SMALL_BYTES", "TABLE", "Blas", "Bound", "Cut", "Key", "Meta", "Op", "Operand", "Options", "Plan", "Shape",
    "check_int_bounds", "encode_key", "exact", "meta", "plan", "plan_key", "power_op", "resolve",
]  # fmt: skip

"""The operations as plain data: one table, with a kernel, a shape rule and byte costs for each."""

from .exactly import exact
from .index_keys import Key, encode_key
from .meta import Meta, Shape, meta
from .op import Bound, Op, Operand, Options, Plan, check_int_bounds, plan, plan_key, resolve
from .pace import SMALL_BYTES
from .table import TABLE, power_op

__all__ = [
    "SMALL_BYTES",
    "TABLE",
    "Bound",
    "Key",
    "Meta",
    "Op",
    "Operand",
    "Options",
    "Plan",
    "Shape",
    "check_int_bounds",
    "encode_key",
    "exact",
    "meta",
    "plan",
    "plan_key",
    "power_op",
    "resolve",
]

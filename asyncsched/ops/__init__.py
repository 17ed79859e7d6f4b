"""The operations as plain data: one table, with a kernel, a shape rule and byte costs for each."""

from .exactly import exact
from .index_keys import Key, encode_key
from .meta import Meta, Shape, meta
from .pace import SMALL_BYTES
from .row import Bound, Operand, Options, Plan, Row, check_int_bounds, plan, plan_key, resolve
from .table import TABLE, power_row

__all__ = [
    "SMALL_BYTES",
    "TABLE",
    "Bound",
    "Key",
    "Meta",
    "Operand",
    "Options",
    "Plan",
    "Row",
    "Shape",
    "check_int_bounds",
    "encode_key",
    "exact",
    "meta",
    "plan",
    "plan_key",
    "power_row",
    "resolve",
]

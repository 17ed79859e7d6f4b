"""The scheduler behind this namespace."""

from __future__ import annotations

from typing import Final

from ..background import Kept
from ..background import check_may_block as check_may_block

kept: Final = Kept("array_api")
background = kept.get
replace = kept.replace

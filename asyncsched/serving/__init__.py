"""Serving models over HTTP: ASGI middleware, with no framework but yours."""

from .frameworks import ANSWERED
from .http import Exchange, Instrument, Problem
from .server import Serving

__all__ = ["ANSWERED", "Exchange", "Instrument", "Problem", "Serving"]

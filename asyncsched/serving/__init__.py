"""Serving models over HTTP: ASGI middleware, with no framework but yours."""

from .http import Exchange, Instrument, Problem
from .server import ANSWERED, Serving

__all__ = ["ANSWERED", "Exchange", "Instrument", "Problem", "Serving"]

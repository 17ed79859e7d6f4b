"""Serving models over HTTP: ASGI middleware, with no framework but yours."""

from .http import Exchange, Instrument, Problem
from .middleware import ANSWERED
from .server import Serving

__all__ = ["ANSWERED", "Exchange", "Instrument", "Problem", "Serving"]

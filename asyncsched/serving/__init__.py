"""Serving models over HTTP: ASGI middleware, with no framework but yours."""

from .http import Exchange, Instrument, Problem
from .server import Serving

__all__ = ["Exchange", "Instrument", "Problem", "Serving"]

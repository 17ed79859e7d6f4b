"""Serving models over HTTP: ASGI middleware, with no framework but yours."""

from .exchange import Exchange
from .instruments import Instrument
from .problems import Problem
from .server import Serving

__all__ = ["Exchange", "Instrument", "Problem", "Serving"]

"""Batchers: one call for what many callers ask for at the same time."""

from .batcher import Batcher, BatcherStatistics

__all__ = ["Batcher", "BatcherStatistics"]

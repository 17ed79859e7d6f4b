"""Batchers: one call for what many callers ask for at the same time. Steppers: the same again and again, for members
that stay."""

from .batcher import Batcher, BatcherStatistics
from .stepper import SKIP, Last, Outputs, Stepper, StepperStatistics

__all__ = ["SKIP", "Batcher", "BatcherStatistics", "Last", "Outputs", "Stepper", "StepperStatistics"]

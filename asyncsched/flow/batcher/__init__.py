"""Batchers: one call for the items of many callers. Steppers: such a call again and again, for members that stay."""

from .batcher import Batcher, BatcherStatistics
from .stepper import SKIP, Last, Outputs, Stepper, StepperStatistics

__all__ = ["SKIP", "Batcher", "BatcherStatistics", "Last", "Outputs", "Stepper", "StepperStatistics"]

"""Pipelines: from a source to the device, stage by stage."""

from .epoch import PipelineStatistics, StageStatistics
from .pipeline import Pipeline, Source, make_pipeline

__all__ = ["Pipeline", "PipelineStatistics", "Source", "StageStatistics", "make_pipeline"]

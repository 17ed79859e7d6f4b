"""Pipelines: from a source to the device, stage by stage."""

from .pipeline import Pipeline, Source, make_pipeline
from .statistics import PipelineStatistics, StageStatistics

__all__ = ["Pipeline", "PipelineStatistics", "Source", "StageStatistics", "make_pipeline"]

"""Stages that work on different samples of a stream at the same time: `grape.pipeline`."""

from .pipelining import Pipeline, pipeline

__all__ = ["Pipeline", "pipeline"]

"""Renderings of a report: text, HTML, JSON, Chrome trace. Pure functions of `grape.model.ReportData`."""

from .memory_rows import graph_stores
from .report import Report, build_report

__all__ = ["Report", "build_report", "graph_stores"]

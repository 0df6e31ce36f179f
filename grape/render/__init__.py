"""Renderings of a report: text, HTML, JSON, Chrome trace. Pure functions of `grape.model.ReportData`."""

from .memory_rows import graph_stores
from .report import Report, build_report
from .verdict.verdict import build_verdict

__all__ = ["Report", "build_report", "build_verdict", "graph_stores"]

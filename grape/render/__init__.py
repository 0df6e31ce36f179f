"""Renderings of a report: text, HTML, JSON, Chrome trace. Pure functions of `grape.model.ReportData`."""

from .report import Report, build_report
from .summary import graph_stores
from .verdict import build_verdict

__all__ = ["Report", "build_report", "build_verdict", "graph_stores"]

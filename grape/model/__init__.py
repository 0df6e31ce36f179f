"""Frozen data that crosses layers. Nothing here imports torch or IPython."""

from .codes import CODES, Outcome, Severity
from .evidence import CellEvidence, CopyRecord, RegionEvidence, ScalarChange, ShapeCount
from .finding import Finding, Fix
from .graph_memory import GraphMemory
from .location import Position
from .outcome import Decision, Later, NoMemory, NoRoom, Refused, RetryLater
from .reasons import Reason
from .report import FEWEST_SAMPLES, RegionReport, ReportData
from .stream import Stop, StreamEvidence
from .times.cell_time import LEAST_MS, SIGNIFICANT, CallsAccount, CellTime, OwnTime, Served
from .times.lines import LineTime, LineTimes
from .times.loading import LoaderWait
from .times.machine import MachineCosts
from .times.measured import Measured
from .times.ranks import Late, RanksEvidence, RankTimes
from .times.spent import Kind, Part, Spent
from .times.timeline import DEVICE_WORK, Category, Event, Lane, MemoryCurve, Timeline
from .trace import DECISION, HOST_RANDOM, HostRead, OpRecord, TensorView, Trace

__all__ = [
    "CODES",
    "DECISION",
    "DEVICE_WORK",
    "FEWEST_SAMPLES",
    "HOST_RANDOM",
    "LEAST_MS",
    "SIGNIFICANT",
    "CallsAccount",
    "Category",
    "CellEvidence",
    "CellTime",
    "CopyRecord",
    "Decision",
    "Event",
    "Finding",
    "Fix",
    "GraphMemory",
    "HostRead",
    "Kind",
    "Lane",
    "Late",
    "Later",
    "LineTime",
    "LineTimes",
    "LoaderWait",
    "MachineCosts",
    "Measured",
    "MemoryCurve",
    "NoMemory",
    "NoRoom",
    "OpRecord",
    "Outcome",
    "OwnTime",
    "Part",
    "Position",
    "RankTimes",
    "RanksEvidence",
    "Reason",
    "Refused",
    "RegionEvidence",
    "RegionReport",
    "ReportData",
    "RetryLater",
    "ScalarChange",
    "Served",
    "Severity",
    "ShapeCount",
    "Spent",
    "Stop",
    "StreamEvidence",
    "TensorView",
    "Timeline",
    "Trace",
]

"""Why a region stays eager: one row for each reason, and nobody reads the sentence but a person.

A row gives the finding's code and the sentence, whose fields a `Refused` fills in; then what to do about it, where
that is known better than the code's rule knows it. Compare reasons, never sentences.
"""

from __future__ import annotations

from enum import Enum

from ..failures import HOW
from .codes import Severity

_NOTHING = "nothing is to change: results stay those of eager; `--tolerance X` accepts small differences"
_FREE = "free memory on the device, then run the cell again"
_RESET = "free memory on the device, then `%grape reset` and run the cell again"
_MORE = "give the graphs more with `--memory-budget`, or call it with smaller shapes"
_PASS = "pass the values that it needs as arguments, instead of what holds them all"
_TRACEBACK = f"it runs as written; {HOW}"
_TO_GPU = "move the model and its inputs to the GPU: `.to('cuda')`"

_CLOSED = frozenset({"GR402", "GR406"})
"""Codes with which callables inside would be refused as well."""


class Reason(Enum):
    """`code` is a finding code, `sentence` a template; `advice` what to do, None where the rule of the code says it."""

    # The host waits, decides, or hands over data.
    HOST_READ = "GR101", "the host waits for {what} inside the region"
    ESCAPE = "GR101", ".{name}() takes a tensor's contents to the host"
    CPU_RESULT = "GR101", "it returns a CPU tensor, for which the host would have to wait"
    READ_BESIDE_FLOW = "GR101", "{operator} needs the host, beside control flow that is left to the device"
    CAPTURE_READS = "GR101", "{what}"
    BRANCH = "GR102", "a tensor's value decides `{construct}`"
    ENDLESS = "GR102", "a loop of the replay had not ended after {iterations} iterations, the eager one had"
    TRUTH_RETURNED = "GR102", "it returns a truth value that is only known on the device"
    TIED_RESULTS = "GR102", "whether a result shares memory with another tensor depends on data"
    FLOW_RECORDS_GRADIENTS = "GR102", "control flow that is left to the device records gradients"
    CAPTURE_BRANCHES = "GR102", "{what}"
    DATA_SHAPE = "GR103", "the shape of {operator}'s result depends on data"
    CAPTURE_SHAPES = "GR103", "{what}"
    HOST_DATA = "GR302", "{operator} brings data to the device that Grape cannot foresee"

    # Two runs of one call are not alike.
    DIVERGED = "GR402", "the capture ran other operators than the eager call: {difference}"
    NUMBER_CHANGED = "GR403", "a Python value that reaches {operator} changed from one run to the next"
    NUMBER_CHANGES = "GR403", "a Python value that reaches {operator} changes from call to call"
    ARGUMENT_CHANGES = "GR403", "`{argument}` is no tensor, and changes at each call"
    NAME_CHANGES = "GR403", "`{argument}` is no tensor, and changes at each iteration"
    TENSORS_CHANGE = (
        "GR403",
        "the tensors that it reads beside its arguments have other shapes or dtypes at each call",
    )
    STATE_CHANGES = "GR403", "{changed}{by} changes at every call"
    CPU_NUMBER = "GR403", "{operator} takes a number from a CPU tensor, which a replay would not read again"
    CHANGED_NUMBER = "GR403", "it reads a number from a tensor that each call changes"

    # Python does what a replay would not.
    CALLS = "GR404", "it calls {call}(), which a replay would not repeat"
    WARNS = "GR404", "it shows a warning at each call, which a replay would not repeat"
    CHANGES = "GR404", "the call changes {changed}"
    CHANGES_STATE = "GR404", "the call changes {changed}{by}, which a replay would not"
    BRANCH_CHANGES = "GR404", "a branch that was not taken changes {changed}"
    CHANGES_ARGUMENT = "GR404", "it changes the shape, the flags or the memory of an argument"
    OTHER_OPERATORS = "GR404", "equal calls ran different operators ({operators}): hidden state decides"
    GRADIENTS_DIFFER = "GR404", "what it leaves in `.grad` differs between two runs of the same call"
    RECORDS_DIFFER = "GR404", "what autograd records differs between two runs of the same call"
    MADE_DIFFERS = "GR404", "what autograd makes differs between two runs of the same call"
    RESULT_DIFFERS = "GR404", "the result differs between two runs of the same call: {difference}"
    FOREIGN_CONTAINER = "GR404", "it returns a {kind} that it did not make and Grape cannot find"
    HOST_WRITE = "GR404", "{operator} writes a tensor of the CPU, which a replay would not"
    NAMES_STAY = "GR404", "it depends on data which of its names stay as they are"
    CAPTURE_STATE = "GR404", "{what}"

    # Gradients.
    NEEDS_GRADIENTS = "GR405", "its results need gradients{more}"
    OWN_GRADIENT = "GR405", "an argument or a result that is no parameter has a gradient of its own"
    ARGUMENT_GRADIENT = "GR405", "an argument requires a gradient"
    AUTOCAST = "GR405", "autocast is entered outside of what calls backward; enter it inside"
    ACCUMULATES = "GR405", "it accumulates into a gradient that is in use elsewhere"
    GRADIENT_HOLDERS = "GR405", "this version of torch does not tell who holds a gradient"
    GRADIENT_DENSITY = "GR405", "it makes a sparse gradient"
    GRADIENT_RECORDED = "GR405", "it makes a gradient that can be differentiated again"
    GRADIENT_REPLACED = "GR405", "it replaces a gradient that is in use elsewhere"
    GRADIENT_FOREIGN = "GR405", "it sets `.grad` to a tensor that it did not make"
    GRADIENT_RETURNED = "GR405", "it returns the memory of a gradient"
    GRADIENTS_SHARE = "GR405", "two gradients share memory"
    GRADIENTS_AGAIN = "GR405", "its gradients are differentiated again"
    GRADIENT_KEPT = "GR405", "a result retains its gradient, which a replay would not give it"
    NODE_HOOK = "GR405", "a hook on the node of a parameter's gradient would not see a replay"
    NODE_NUMBERS = (
        "GR405",
        "it records gradients, and this build of torch lets no replay number autograd's nodes as eager code does",
    )
    SECOND_ORDER = (
        "GR405",
        "it differentiates gradients (`create_graph=True`): after a replay, later ones would be summed otherwise",
    )
    BACKWARD_OPERATOR = "GR405", "its backward holds {operator}, which no graph repeats"
    VIEW_FORBIDDEN = "GR405", "it has a view that autograd lets nobody use: what it views was changed in place since"
    MAKES_PARAMETER = "GR405", "it makes a parameter, or a tensor that requires a gradient"

    # What no graph can hold, or no guard can see.
    ARGUMENTS = "GR405", "{what}"
    STATE_SIZE = "GR405", "{what}", _PASS
    OPAQUE = "GR405", "{what}"
    OPERATOR_LIMIT = "GR405", "it issues {limit} operators or more in one call: too many for one graph"
    ON_THE_CPU = (
        "GR405",
        "its tensors are in CPU memory: move the model and its inputs to the GPU, .to('cuda')",
        _TO_GPU,
    )
    PROFILED = "GR405", "a profile function is set (`sys.setprofile`), which would see no replay"
    MODE = "GR405", "a {mode} is active, which would not see a replay"
    GROUP = "GR405", "{what}"
    PARALLEL = (
        "GR405",
        "it works with a {kind}, whose hooks and exchanges between devices a replay would leave out",
    )
    COLLECTIVE = "GR405", "{operator} exchanges tensors with other processes"
    DEVICES = "GR405", "it works on several devices: {devices}"
    UNCOMPARED = "GR405", "{operator} takes a `{kind}`, which cannot be compared from one call to the next"
    SPARSE = "GR405", "it works on {what}, such as a sparse one"
    COMPILED = "GR405", "it runs {what}, whose kernels no operator shows"
    PLACE = "GR405", ".{name} tells where a tensor lies, which differs in a replay"
    ABSOLUTE = "GR405", "{operator} takes an offset from the beginning of an argument's memory"
    HIDDEN_KERNEL = (
        "GR405",
        "torch does not show the Python code of {operator}; register it with `torch.library.custom_op`, which does",
    )
    FOREIGN_READ = (
        "GR405",
        "{operator} reads a tensor that is neither an argument nor found through the code's own names",
    )
    FOREIGN_TENSOR = "GR405", "it returns a tensor that it did not make and Grape cannot find"
    ARGUMENT_DTYPE = "GR405", "a result reinterprets an argument's dtype"
    OUTSIDE_DTYPE = "GR405", "a result reinterprets the dtype of a tensor from outside"
    ATTRIBUTES = "GR405", "an argument or a result is a tensor with Python attributes"
    RESULT_FORM = "GR405", "{what}"
    HOST_DRAWS = "GR405", "it draws random numbers on the CPU{how}"
    DRAWS_BESIDE_FLOW = "GR405", "it draws random numbers on the CPU beside control flow of the device"
    RAISED = "GR405", "the code raised {error} while it was captured: {text}"
    CAPTURE_UNSUPPORTED = "GR405", "{what}"
    FAILED = "GR405", "Grape failed while it captured this ({error}), which is no fault of the code's", _TRACEBACK

    # The replay was not right.
    REPLAY_DIFFERS = "GR405", "a replay gives {where} other bits than eager code does{because}", _NOTHING
    REPLAY_GRADIENT = "GR405", "the replay's gradient differs from the eager one{because}", _NOTHING
    REPLAY_LOOKS = "GR405", "in a replay {where} would differ from the eager one in its {what}", _NOTHING
    REPLAY_DRAWS = "GR405", "the replay consumed another random stream than the eager call"
    UNSETTLED = (
        "GR405",
        "its kernels do not give the same bits twice, and the replay gave those of no eager run",
    )
    UNSETTLED_PAIR = "GR405", "its kernels do not give the same bits twice"
    WRITES = "GR405", "it writes its inputs; the next call is tried on copies of them"

    # Memory.
    NO_BUDGET = "GR405", "the memory budget of 0 B has no room for a graph", _MORE
    OVER_BUDGET = (
        "GR405",
        "placeholders and workspace of graphs take {beside}, and beside them no executable fits "
        "into the memory budget of {budget}",
        _MORE,
    )
    DEVICE_FULL = "GR405", "the device has no memory left for an executable of its graphs", _FREE
    EXHAUSTED = "GR405", "the device ran out of memory beside graphs; no more are captured", _RESET
    GAVE_WAY = "GR405", "the device ran out of memory, so its graphs were released", _RESET
    CAPTURE_MEMORY = "GR405", "out of memory while capturing: {what}"
    SNAPSHOT_MEMORY = "GR405", "no memory for a snapshot of what the region writes"

    # It does not pay.
    NO_WORK = "GR406", "it issues next to no device work"
    REPLAYS_SLOWER = "GR406", "{replays} replays took {now} ms each, {then} ms as written; left eager"
    GRAPH_SLOWER = "GR406", "the graph took {now} ms a call, eager {then} ms; left eager"
    LOOP_SLOWER = "GR406", "{what}"
    BRANCHES_SLOWER = "GR406", "its operators ran no faster beside each other than one behind the other"

    code: str
    sentence: str
    advice: str | None

    def __new__(cls, code: str, sentence: str, advice: str | None = None) -> Reason:
        """Rows with one sentence are several reasons all the same."""
        reason = object.__new__(cls)
        reason._value_ = len(cls.__members__)
        reason.code, reason.sentence, reason.advice = code, sentence, advice
        return reason

    @property
    def severity(self) -> Severity:
        return "hint" if self.code == "GR406" else "blocker"

    @property
    def opens(self) -> bool:
        """True where callables inside one that was refused may become regions."""
        return self.code not in _CLOSED

    @property
    def is_of_gradients(self) -> bool:
        """True where the same call without gradients would not be refused for it."""
        return self in _OF_GRADIENTS


_OF_GRADIENTS = frozenset(
    {
        Reason.NEEDS_GRADIENTS,
        Reason.OWN_GRADIENT,
        Reason.ARGUMENT_GRADIENT,
        Reason.ACCUMULATES,
        Reason.GRADIENT_HOLDERS,
        Reason.GRADIENT_DENSITY,
        Reason.GRADIENT_RECORDED,
        Reason.GRADIENT_REPLACED,
        Reason.GRADIENT_RETURNED,
        Reason.GRADIENTS_SHARE,
        Reason.GRADIENTS_AGAIN,
        Reason.GRADIENT_KEPT,
        Reason.NODE_HOOK,
        Reason.NODE_NUMBERS,
        Reason.SECOND_ORDER,
        Reason.MAKES_PARAMETER,
        Reason.REPLAY_GRADIENT,
    }
)

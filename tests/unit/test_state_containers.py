"""Contents of containers, by torch's numbers of writes or in Grape's extension where that is enough
(`runtime/state/containers.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grape import native
from grape.runtime.state import Contents, containers
from grape.runtime.state.contents import getter

VALUE = object()


def world() -> dict[str, Any]:
    return {
        "dict": {"a": VALUE, "b": 1.0},
        "empty": {},
        "ordered": OrderedDict(a=VALUE, b=VALUE),
        "list": [VALUE, 2],
        "attributes": {"read": VALUE, "other": 0, "unread": 0},
    }


def contents_of(found: dict[str, Any]) -> Contents:
    made = Contents(
        [found["dict"], found["empty"], found["ordered"]],
        [found["list"]],
        [(found["attributes"], getter(["read", "other"]))],
    )
    made.remember()
    return made


@pytest.fixture(params=["numbers", "items", "extension"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With torch's numbers of writes, as in a version of torch that has none, and as where the extension is there."""
    if request.param == "extension":
        if native.built() is None:
            pytest.skip("the extension is not built")
        return str(request.param)
    monkeypatch.setattr(native, "built", lambda: None)
    if request.param == "items":
        monkeypatch.setattr(containers, "_dict_version", None)
    elif containers._dict_version is None:
        pytest.skip("this version of Python or torch numbers no writes")
    return str(request.param)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another value": lambda w: w["dict"].update(a=object()),
    "an equal value that is another object": lambda w: w["dict"].update(b=float("1.0")),
    "another name": lambda w: w["dict"].update(c=w["dict"].pop("b")),
    "another order": lambda w: w["dict"].update(a=w["dict"].pop("a")),
    "one more": lambda w: w["empty"].update(a=1),
    "none left": lambda w: w["dict"].clear(),
    "another order of an ordered dict": lambda w: w["ordered"].move_to_end("a"),
    "another value of an ordered dict": lambda w: w["ordered"].update(a=object()),
    "another item": lambda w: w["list"].__setitem__(1, object()),
    "one more item": lambda w: w["list"].append(1),
    "one item fewer": lambda w: w["list"].pop(),
    "another attribute": lambda w: w["attributes"].update(read=object()),
    "one more attribute": lambda w: w["attributes"].update(new=1),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("quiet", [0, 1, containers.PATIENCE, 2 * containers.PATIENCE])
def test_every_change_is_noticed(how: str, change: str, quiet: int) -> None:
    """Also after writes that changed nothing, after which the dicts are compared by their items."""
    found = world()
    contents = contents_of(found)
    for _ in range(quiet):
        for one in (found["dict"], found["attributes"]):
            for name, value in list(one.items()):
                one[name] = object()
                one[name] = value
        assert contents.same()
    CHANGES[change](found)
    assert not contents.same()
    assert not contents.same()


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_remembered_anew_is_the_same(how: str, change: str) -> None:
    found = world()
    contents = contents_of(found)
    CHANGES[change](found)
    if change == "one more attribute":
        found["attributes"].pop("new")
    contents.remember()
    assert contents.same() and contents.same()


def test_an_attribute_that_nobody_reads_may_change(how: str) -> None:
    found = world()
    contents = contents_of(found)
    for number in range(2 * containers.PATIENCE):
        found["attributes"]["unread"] = number
        assert contents.same()
    found["attributes"]["other"] = 1000
    assert not contents.same()


def test_an_attribute_that_is_gone_raises(how: str) -> None:
    found = world()
    contents = contents_of(found)
    found["attributes"]["new"] = found["attributes"].pop("read")
    with pytest.raises(KeyError):
        contents.same()


def test_dicts_that_are_left_alone_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    if containers._dict_version is None:
        pytest.skip("this version of Python or torch numbers no writes")
    monkeypatch.setattr(native, "built", lambda: None)
    found = world()
    contents = contents_of(found)
    read: list[int] = []
    monkeypatch.setattr(containers._Compared, "values", lambda self: iter(read.append(len(self.dicts)) or self.saved))
    assert contents.same()
    assert read == [1]  # the ordered dict


NAMES = st.sampled_from("abc")
VALUES = st.sampled_from([VALUE, 1, 1.0, True, "x"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), NAMES, VALUES),
        st.tuples(st.just("pop"), NAMES, VALUES),
        st.tuples(st.just("clear"), NAMES, VALUES),
        st.tuples(st.just("ask"), NAMES, VALUES),
        st.tuples(st.just("remember"), NAMES, VALUES),
    ),
    max_size=40,
)


@settings(
    max_examples=200, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_the_answer_is_that_of_a_comparison(how: str, steps: list[tuple[str, str, Any]]) -> None:
    one: dict[str, Any] = {"a": VALUE}
    contents = Contents([one], [], [])
    contents.remember()
    then = list(one.items())
    for step, name, value in steps:
        if step == "set":
            one[name] = value
        elif step == "pop":
            one.pop(name, None)
        elif step == "clear":
            one.clear()
        elif step == "remember":
            contents.remember()
            then = list(one.items())
        else:
            now = list(one.items())
            same = len(now) == len(then) and all(a is c and b is d for (a, b), (c, d) in zip(now, then, strict=True))
            assert contents.same() is same

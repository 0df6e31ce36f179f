"""The option table and its parser: what is accepted, what it becomes, and what is said otherwise."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grape.errors import GrapeError, UsageError
from grape.options import OPTIONS, Options, parse_bytes, parse_options

FLAGS = "--engine, --profile, --rewrite, --tolerance, --memory-budget, --no-widget, -o, --output, --json"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("1KB", 1024),
        ("1kib", 1024),
        ("3 MB", 3 * 2**20),
        ("3MiB", 3 * 2**20),
        (" 2GB ", 2 * 2**30),
        ("2gb", 2 * 2**30),
        ("1.5GB", 3 * 2**29),
        ("0.5KB", 512),
        ("1.9", 1),
        ("9007199254740993", 9007199254740993),
        (f"1{'0' * 400}KB", 10**400 * 1024),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", " ", "GB", "2TB", "-1GB", "1e9", "two GB", "1..5GB", "2GB!", "2,5GB", "nan", "inf"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"'{text}' is not a size; write for example 512MB or 2GB")):
        parse_bytes(text)


@given(st.integers(min_value=0, max_value=2**20), st.sampled_from(["", "B", "KB", "MB", "GB", "KiB", "MiB", "GiB"]))
def test_whole_sizes_are_exact_in_every_unit(number: int, unit: str) -> None:
    power = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3}[unit[:1]]
    assert parse_bytes(f"{number}{unit}") == number * 1024**power


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", Options()),
        ("   ", Options()),
        ("--profile", Options(profile=True)),
        ("--profile --profile", Options(profile=True)),
        ("--no-widget", Options(no_widget=True)),
        ("--tolerance 1e-3", Options(tolerance=1e-3)),
        ("--tolerance=0.5", Options(tolerance=0.5)),
        ("--tolerance 0", Options()),
        ("--tolerance 1 --tolerance 2", Options(tolerance=2.0)),
        ("--memory-budget 2GB", Options(memory_budget=2 * 2**30)),
        ("--memory-budget=512MB", Options(memory_budget=512 * 2**20)),
        ("--memory-budget '1.5 GB'", Options(memory_budget=3 * 2**29)),
        ("-o report", Options(output="report")),
        ("-o match", Options(output="match")),
        ("--output report", Options(output="report")),
        ("--output=report", Options(output="report")),
        ("--json out.json", Options(json="out.json")),
        ("--json 'my file.json'", Options(json="my file.json")),
        ("--json={x}", Options(json="{x}")),
        ("--json a=b.json", Options(json="a=b.json")),
        (
            "--json r.json -o r --no-widget --memory-budget 1KB --tolerance 1e-6 --profile",
            Options(profile=True, tolerance=1e-6, memory_budget=1024, no_widget=True, output="r", json="r.json"),
        ),
    ],
)
def test_accepted(line: str, expected: Options) -> None:
    assert parse_options(line) == expected


def test_words_of_a_command_line_are_not_split_again() -> None:
    assert parse_options(["--json", "my file.json"]) == Options(json="my file.json")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--profil", "unknown option '--profil'; did you mean --profile?"),
        ("--tolerence 1", "unknown option '--tolerence'; did you mean --tolerance?"),
        ("--memory_budget 1GB", "unknown option '--memory_budget'; did you mean --memory-budget?"),
        ("--profil=yes", "unknown option '--profil=yes'; did you mean --profile?"),
        ("--foo", f"unknown option '--foo'; options: {FLAGS}"),
        ("--zzz", f"unknown option '--zzz'; options: {FLAGS}"),
        ("report", f"unknown argument 'report'; options: {FLAGS}"),
        ("--profile 3", f"unknown argument '3'; options: {FLAGS}"),
        ("--profile=3", "--profile takes no value"),
        ("--profile=", "--profile takes no value"),
        ("--tolerance", "--tolerance needs a value: --tolerance X"),
        ("--memory-budget", "--memory-budget needs a value: --memory-budget SIZE"),
        ("-o", "-o needs a value: -o NAME"),
        ("--json", "--json needs a value: --json FILE"),
        ("--tolerance small", "--tolerance takes a number, not 'small'"),
        ("--tolerance=", "--tolerance takes a number, not ''"),
        ("--tolerance=-1", "--tolerance takes a finite number of at least 0, not '-1'"),
        ("--tolerance inf", "--tolerance takes a finite number of at least 0, not 'inf'"),
        ("--tolerance nan", "--tolerance takes a finite number of at least 0, not 'nan'"),
        ("--memory-budget much", "'much' is not a size; write for example 512MB or 2GB"),
        ("-o my-report", "-o takes a Python name, not 'my-report'"),
        ("-o 2x", "-o takes a Python name, not '2x'"),
        ("-o class", "-o takes a Python name, not 'class'"),
        ("-o None", "-o takes a Python name, not 'None'"),
        ("--json 'x", "cannot read the options '--json 'x': No closing quotation"),
    ],
)
def test_refused_in_one_line(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        parse_options(line)


def test_a_usage_error_is_a_grape_error_with_its_exit_code() -> None:
    assert issubclass(UsageError, GrapeError)
    assert UsageError.exit_code == 2


def test_every_option_has_one_field_and_every_field_one_option() -> None:
    assert [option.field for option in OPTIONS] == [field.name for field in dataclasses.fields(Options)]
    flags = [flag for option in OPTIONS for flag in option.flags]
    assert len(set(flags)) == len(flags)
    assert all(flag.startswith("-") for flag in flags)
    assert all(option.help for option in OPTIONS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.field)
def test_switches_default_to_off_and_values_to_nothing(option: object) -> None:
    default = getattr(Options(), option.field)
    assert (default is False) == (option.metavar is None)


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().profile = True


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12), max_size=6))
def test_any_words_give_options_or_a_usage_error_of_one_line(words: list[str]) -> None:
    try:
        assert isinstance(parse_options(words), Options)
    except UsageError as error:
        assert len(str(error).splitlines()) == 1

"""Checks of single arguments: what they return, and the errors that name the parameter."""

import math
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from ncelm.arguments import (
    SHOWN_CHARACTERS,
    check,
    check_bool,
    check_callable,
    check_choice,
    check_float,
    check_floats,
    check_ids,
    check_int,
    check_ints,
    check_iterable,
    check_path,
    check_paths,
    check_str,
    check_strings,
    check_type,
    shown,
)
from ncelm.errors import ArgumentError, ArgumentTypeError, NcelmError


class BrokenRepr:
    def __repr__(self) -> str:
        raise RuntimeError


class BytesPath(os.PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return b"x"


def message_of(kind, call, *arguments, **options):
    """Return the message of the error that a check of the parameter `x` raises, which is of exactly this kind."""
    with pytest.raises(NcelmError) as caught:
        call("x", *arguments, **options)
    assert type(caught.value) is kind
    assert isinstance(caught.value, TypeError if kind is ArgumentTypeError else ValueError)
    message = str(caught.value)
    assert message.startswith("`x` is ")
    assert message.splitlines() == [message]
    return message


def test_check():
    check("x", 3, True, "something")
    check_type("x", 3, True, "something")
    assert message_of(ArgumentError, check, 3, False, "a 4") == "`x` is 3: give a 4"
    assert message_of(ArgumentTypeError, check_type, "3", False, "a 4") == "`x` is '3': give a 4"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("a\nb", r"'a\nb'"),
        (np.eye(2), "array([[1., 0.], [0., 1.]])"),
        (10**5000, "a value of type int"),  # Python does not convert it
        (BrokenRepr(), "a value of type BrokenRepr"),
        ("y" * 1000, "'" + "y" * (SHOWN_CHARACTERS - 1) + "…"),
    ],
    ids=["int", "str", "array", "huge", "error", "long"],
)
def test_values_are_shown_on_one_short_line(value, text):
    assert shown(value) == text


# -- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3)])
def test_whole_numbers_become_ints(value):
    found = check_int("x", value, 3, 3)
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize("value", [1.0, 1.5, "1", None, True, False, np.True_, [1], math.nan, 1j, object(), np.ones(1)])
def test_no_whole_number(value):
    assert message_of(ArgumentTypeError, check_int, value, 1, 2000).endswith(": give a whole number from 1 to 2,000")


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0, 1, 300, "a whole number from 1 to 300"),
        (301, 1, 300, "a whole number from 1 to 300"),
        (10**400, 1, 300, "a whole number from 1 to 300"),
        (-1, 0, None, "a whole number, at least 0"),
        (2**63, 0, None, "a whole number, at least 0, below 2**63"),
        (-(10**400), None, None, "a whole number, below 2**63"),
    ],
)
def test_whole_numbers_out_of_range(value, low, high, expected):
    assert message_of(ArgumentError, check_int, value, low, high).endswith(f": give {expected}")


def test_limits_of_whole_numbers():
    assert [check_int("x", value, -1, 1) for value in (-1, 0, 1)] == [-1, 0, 1]
    assert check_int("x", 2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
def test_numbers_become_floats(value):
    found = check_float("x", value)
    assert found == 0.5
    assert type(found) is float


def test_integers_are_numbers():
    assert (check_float("x", 1), check_float("x", np.int64(2))) == (1.0, 2.0)
    assert type(check_float("x", 1)) is float


@pytest.mark.parametrize("value", ["0.5", None, True, np.True_, [0.5], 1j, object(), np.ones(1)])
def test_no_number(value):
    assert message_of(ArgumentTypeError, check_float, value, 0, 1).endswith(": give a number from 0 to 1")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, np.float32("inf")])
def test_numbers_that_are_not_finite(value):
    assert message_of(ArgumentError, check_float, value).endswith(": give a finite number")


@pytest.mark.parametrize(
    ("value", "options", "expected"),
    [
        (-0.1, {"low": 0, "high": 1}, "a number from 0 to 1"),
        (1.1, {"low": 0, "high": 1}, "a number from 0 to 1"),
        (-0.1, {"low": 0}, "a finite number, at least 0"),
        (0, {"low": 0, "high": 1e6, "positive": True}, "a positive number, at most 1e+06"),
        (0.0, {"positive": True}, "a positive number"),
    ],
)
def test_numbers_out_of_range(value, options, expected):
    assert message_of(ArgumentError, check_float, value, **options).endswith(f": give {expected}")


def test_lists_of_numbers():
    assert check_ints("x", (1, 2)) == [1, 2]
    assert check_ints("x", np.array([1, 2], np.uint8)) == [1, 2]
    assert check_ints("x", [np.int64(1), 2], 1) == [1, 2]
    assert check_ints("x", []) == check_floats("x", ()) == []
    assert check_ints("x", iter([1])) == [1]
    assert check_floats("x", [1, np.float32(0.5)]) == [1.0, 0.5]
    assert all(type(number) is int for number in check_ints("x", [np.int64(1), 2]))


@pytest.mark.parametrize("value", ["12", b"12", None, 3, {1: 2}, [1.5], ["1"], [[1]], [True], [1, None], np.ones(2)])
def test_no_list_of_whole_numbers(value):
    assert message_of(ArgumentTypeError, check_ints, value, 0).endswith(": give a list of whole numbers, at least 0")


@pytest.mark.parametrize("value", [[1, -1], [2**63], [np.int64(-1)], np.array([-1]), [10**400, 1.0]])
def test_lists_with_whole_numbers_out_of_range(value):
    assert ": give a list of whole numbers, at least 0" in message_of(ArgumentError, check_ints, value, 0)


@pytest.mark.parametrize("value", ["ab", None, 3, {}, ["1"], [[1.0]], [True], [1, None], np.array(1.0)])
def test_no_list_of_numbers(value):
    assert message_of(ArgumentTypeError, check_floats, value).endswith(": give a list of finite numbers")


@pytest.mark.parametrize("value", [[math.nan], [1, math.inf], [10**400]])
def test_lists_with_numbers_that_are_not_finite(value):
    assert message_of(ArgumentError, check_floats, value).endswith(": give a list of finite numbers")


def test_ids():
    np.testing.assert_array_equal(check_ids("x", [1, 2]), [1, 2])
    given = np.array([1, 2], np.uint16)
    assert check_ids("x", given) is given
    assert check_ids("x", []).dtype.kind == "i"
    for value in ([1.5], ["1"], [True], None, "1", [None]):
        message_of(ArgumentTypeError, check_ids, value)
    for value in (3, [[1]], [[1], [1, 2]]):
        message_of(ArgumentError, check_ids, value)


# -- other single values ---------------------------------------------------------------------------------------------


def test_booleans():
    assert check_bool("x", True) is True
    assert check_bool("x", False) is False
    for value in ("x", "True", 0, 1, None, 1.0, [], np.int64(1)):
        assert message_of(ArgumentTypeError, check_bool, value).endswith(": give True or False")


def test_strings():
    assert check_str("x", "") == ""
    assert type(check_str("x", np.str_("a"))) is str
    for value in (3, None, b"a", ["a"], True):
        assert message_of(ArgumentTypeError, check_str, value).endswith(": give a string")


def test_choices():
    assert check_choice("x", "a", ("a", "b")) == "a"
    assert check_choice("x", "b", {"a": 1, "b": 2}) == "b"
    for value in ("c", "", "A"):
        assert message_of(ArgumentError, check_choice, value, ("a", "b")).endswith(": give one of a, b")
    for value in (None, 3, ["a"], np.ones(2), object()):
        assert message_of(ArgumentTypeError, check_choice, value, ("a", "b")).endswith(": give one of a, b")


def test_callables():
    check_callable("x", None)
    check_callable("x", print)
    for value in (3, "print", [print], True):
        assert message_of(ArgumentTypeError, check_callable, value).endswith(": give a function or None")


# -- paths and collections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["a/b", Path("a/b")])
def test_paths(value):
    assert check_path("x", value) == Path("a/b")


@pytest.mark.parametrize("value", [None, 3, True, b"a", ["a"], object(), BytesPath()])
def test_no_path(value):
    assert message_of(ArgumentTypeError, check_path, value).endswith(": give a path, as a str or a Path")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "that is not empty"),
        ("a\0b", "without a NUL character"),
        (Path("a\0b"), "without a NUL character"),
        ("x" * 5000, "that is shorter"),
        ("\ud800", "that can be encoded as UTF-8"),
    ],
)
def test_paths_that_no_file_can_have(value, problem):
    assert message_of(ArgumentError, check_path, value, "a run").endswith(f": give a run {problem}")


def test_lists_of_paths():
    assert check_paths("x", ["a", Path("b")]) == [Path("a"), Path("b")]
    assert check_paths("x", (path for path in ["a"])) == [Path("a")]
    for value in ("ab", Path("ab"), None, 3, [3], ["a", None], {"a": 1}):
        assert ": give a list of paths" in message_of(ArgumentTypeError, check_paths, value)
    message_of(ArgumentError, check_paths, ["a", ""])


def test_lists_of_strings():
    assert check_strings("x", ("a", np.str_("b"))) == ["a", "b"]
    assert check_strings("x", np.array(["a", "b"])) == ["a", "b"]
    assert check_strings("x", []) == []
    for value in ("ab", b"ab", None, 3, [1], ["a", None], [["a"]], {"a": 1}, np.array("a")):
        assert message_of(ArgumentTypeError, check_strings, value).endswith(": give a list of strings")


def test_iterables_are_not_read():
    generator = (letter for letter in "ab")
    assert check_iterable("x", generator, "letters") is generator
    assert list(generator) == ["a", "b"]
    for value in ("ab", None, 3, {"a": 1}, b"ab", np.array(3)):
        assert message_of(ArgumentTypeError, check_iterable, value, "letters").endswith(": give letters")

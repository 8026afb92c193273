"""The option parser: order of arguments, negative numbers, several values, suggestions, help."""

from pathlib import Path

import pytest

from ncelm.cli.parser import Parser, UsageError, nearest, number, whole_number, with_default


@pytest.fixture
def parser():
    parser = Parser(prog="ncelm test")
    parser.add_argument("run", type=Path)
    parser.add_argument("words", nargs="*", default=[])
    parser.add_argument("--count", type=whole_number, default=0, help="The number of words. All of them.")
    parser.add_argument("--weights", type=number, nargs="+", metavar="X", help="One weight for each run.")
    parser.add_argument("--min-count", type=whole_number, help="A number of many-long-names.")
    parser.add_argument("--fast", action="store_true", help="Be fast.")
    parser.add_help_option()
    return parser


@pytest.mark.parametrize(
    "words",
    ["run a b --count 3", "--count 3 run a b", "run --count 3 a b", "run a --count=3 b", "--count 3 -- run a b"],
)
def test_arguments_and_options_in_any_order(parser, words):
    arguments = parser.parse(words.split())
    assert (arguments.run, arguments.words, arguments.count) == (Path("run"), ["a", "b"], 3)


@pytest.mark.parametrize("value", ["-1", "-0.5", "-.5", "-1e-3", "-1.5E+2"])
def test_negative_numbers_are_values(parser, value):
    assert parser.parse(["run", "--weights", "1", value, "--fast"]).weights == [1.0, float(value)]
    assert parser.parse(["run", f"--weights={value}"]).weights == [float(value)]


def test_words_that_begin_with_a_hyphen_follow_two(parser):
    arguments = parser.parse(["run", "--count", "2", "--", "-a", "--fast"])
    assert arguments.words == ["-a", "--fast"]
    assert not arguments.fast


def test_a_sentence_that_begins_with_a_hyphen(parser):
    assert parser.parse(["run", "-- yes , he _____ ."]).words == ["-- yes , he _____ ."]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: run"),
        ("run --cuont 3", "there is no option --cuont, did you mean --count?"),
        ("run --coun 3", "there is no option --coun, did you mean --count?"),  # no abbreviations
        ("run --zzz 3", "there is no option --zzz"),
        ("run -q", "there is no option -q"),
        ("run --count x", "argument --count: 'x' is not a whole number"),
        ("run --count 1.5", "argument --count: '1.5' is not a whole number"),
        ("run --weights x", "argument --weights: 'x' is not a number"),
        ("run --count", "argument --count: expected one argument"),
        ("run --fast=1", "argument --fast: ignored explicit argument '1'"),
    ],
)
def test_errors(parser, words, message):
    with pytest.raises(UsageError) as error:
        parser.parse(words.split())
    assert str(error.value) == f"{message}: see `ncelm test --help`"


def test_flags_instead_of_parameters(parser):
    message = "`min_count` is 0, `run` is x: see `ncelm prepare`, `word`, min_count, `vocabulary_size`"
    assert parser.with_flags(message) == message.replace("`min_count`", "--min-count").replace(
        "`vocabulary_size`", "--vocabulary-size"
    )


def test_help(parser, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = parser.format_help()
    assert "The number of words [default: 0]. All of them." in text
    assert "One weight for each run.\n" in text
    assert "Be fast.\n" in text
    assert max(map(len, text.splitlines())) <= 100
    monkeypatch.setenv("COLUMNS", "44")
    assert "many-long-names." in parser.format_help()  # options are not broken at hyphens, either


def test_with_default():
    assert with_default("A number.", 3) == "A number [default: 3]."
    assert with_default("A number. It is large.", 3) == "A number [default: 3]. It is large."


def test_nearest():
    assert nearest("trian", ["train", "score"]) == ", did you mean train?"
    assert nearest("xyz", ["train", "score"]) == ""

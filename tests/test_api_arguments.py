"""Invalid arguments of the public functions: one line that names the parameter, before anything is read or written.

`FUNCTIONS` has each function with valid arguments and, for each parameter, a group of invalid values. The valid
arguments are called, too: otherwise a wrong call could pass for a rejected argument.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers import random_lines, save_model, store_of

import ncelm
from ncelm import completion
from ncelm.errors import NcelmError
from ncelm.models.base import Gap
from ncelm.models.load import load_vectors
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.models.questions import generate_questions
from ncelm.models.vectors import export_vectors, nearest_words
from ncelm.noise import BigramNoise, Noise, noise_of
from ncelm.text.prepare import prepare_part
from ncelm.text.store import contexts_and_targets
from ncelm.training import config as parts

NAN, INF, HUGE, THING = math.nan, math.inf, 10**400, object()

# -- groups of invalid values, by a name for the test ----------------------------------------------------------------

NOT_INT: Mapping[str, Any] = {
    "float": 1.5, "str": "3", "bool": True, "NaN": NAN, "inf": INF, "huge": HUGE, "list": [3], "object": THING,
}  # fmt: skip
NOT_COUNT = NOT_INT | {"None": None, "negative": -1}  # at least 0
NOT_POSITIVE = NOT_COUNT | {"zero": 0}  # at least 1
OR_NONE = NOT_INT | {"negative": -1, "zero": 0}  # at least 1, or None
COUNT_OR_NONE = NOT_INT | {"negative": -1}
NOT_FLOAT = {
    "str": "0.5", "bool": True, "None": None, "NaN": NAN, "inf": INF, "huge": HUGE, "list": [0.5], "complex": 1j,
    "object": THING, "negative": -1,
}  # fmt: skip
NOT_BOOL = {"str": "x", "int": 1, "None": None, "list": [], "object": THING, "float": 0.0}
BOOL_OR_NONE = {name: value for name, value in NOT_BOOL.items() if name != "None"}
NOT_PATH = {
    "None": None, "int": 3, "bool": True, "list": ["x"], "bytes": b"x", "object": THING, "empty": "", "NUL": "a\0b",
    "long": "x" * 5000, "surrogate": "\ud800",
}  # fmt: skip
PATH_OR_NONE = {name: value for name, value in NOT_PATH.items() if name != "None"}
NOT_PATHS = {
    "str": "run", "None": None, "int": 3, "object": THING, "ints": [3, 4], "NUL": ["a\0b", "c"], "dict": {"a": 1},
    "empty path": ["", "x"], "array": np.array(3),
}  # fmt: skip
NOT_TEXTS = {name: value for name, value in NOT_PATHS.items() if name not in ("str", "None")} | {"path with NUL": "\0"}
NOT_CALLABLE = {"int": 3, "str": "print", "list": [print], "object": THING}
NOT_CHOICE = {"other": "x", "None": None, "int": 3, "list": ["x"], "object": THING, "empty": "", "array": np.ones(2)}
CHOICE_OR_NONE = {name: value for name, value in NOT_CHOICE.items() if name != "None"}
NOT_STR = {"None": None, "int": 3, "bytes": b"x", "list": ["x"], "object": THING, "float": NAN}
NOT_WORDS = {
    "str": "w1 w2", "None": None, "int": 3, "ints": [1, 2], "object": THING, "None inside": ["w1", None],
    "dict": {"w1": 1}, "nested": [["w1"]], "bytes": b"w1",
}  # fmt: skip
STRINGS_OR_NONE = {
    "str": "w1 w2", "int": 3, "object": THING, "dict": {"w1": 1}, "bytes": b"w1", "set": {"w1 w2"}, "0-d": np.array(3),
}  # fmt: skip
NOT_SENTENCES = {"str": "w1 w2", "None": None, "int": 3, "object": THING, "bytes": b"w1", "dict": {"w1": 1}}
NOT_SENTENCE = {name: value for name, value in NOT_WORDS.items() if name != "str"} | {"words": ["w1", "w2"]}
NOT_NUMBERS = {
    "str": "1", "None": None, "strs": ["1", "2", "3"], "empty": [], "nested": [[1.0, 2.0]], "object": THING,
    "ragged": [[1], [1, 2]], "NaN": [1.0, NAN], "inf": [1.0, INF], "negative": [1.0, -1.0], "bools": [True, True],
}  # fmt: skip
NOT_IDS = {"str": "1", "strs": ["1"], "floats": [1.5], "None": None, "nested": [[1]], "object": THING, "bools": [True]}
NOT_MODEL = {"None": None, "str": "run", "object": THING, "int": 3, "class": ncelm.LanguageModel}
NOT_PART = {"None": None, "str": "x", "dict": {}, "object": THING, "class": ncelm.TrainConfig}


@dataclass(frozen=True)
class Function:
    """A public function: valid arguments, and invalid values of its parameters."""

    of: Callable[[SimpleNamespace], Callable[..., Any]]  # the function, given the fixture
    valid: Callable[[SimpleNamespace], dict[str, Any]]
    invalid: Mapping[str, Mapping[str, Any]]
    named: Mapping[str, str] | None = None  # parameters that errors name by their flat option


def _plain(function: Callable[..., Any]) -> Callable[[SimpleNamespace], Callable[..., Any]]:
    return lambda api: function


def _lm(name: str) -> Callable[[SimpleNamespace], Callable[..., Any]]:
    return lambda api: getattr(api.lm, name)


COMMON_PREPARE = {
    "files": NOT_TEXTS, "out": NOT_PATH, "valid": NOT_TEXTS, "boundary": CHOICE_OR_NONE, "lowercase": NOT_BOOL,
    "punkt": NOT_CHOICE, "encoding": NOT_STR, "gutenberg": NOT_BOOL, "skip_broken": NOT_BOOL, "workers": OR_NONE,
    "progress": NOT_CALLABLE, "column": {"int": 3, "bytes": b"x", "list": ["x"]}, "blank_lines": NOT_CHOICE,
}  # fmt: skip
WORD_QUERY = {"before": NOT_WORDS, "after": NOT_WORDS, "n": NOT_POSITIVE}
GAPS = {"str": "w1", "None": None, "int": 3, "object": THING}

FUNCTIONS: dict[str, Function] = {
    # -- text -----------------------------------------------------------------------------------------------------
    "prepare": Function(
        _plain(ncelm.prepare),
        lambda api: {"train": api.text, "out": api.out, "workers": 1},
        {
            **COMMON_PREPARE,
            **dict.fromkeys(("texts", "train_lines", "valid_lines", "test_lines"), STRINGS_OR_NONE),
            "train": NOT_TEXTS,
            "test": NOT_TEXTS,
            "min_count": NOT_POSITIVE,
            "vocabulary_size": OR_NONE | {"three": 3},
            "valid_sentences": COUNT_OR_NONE,
            "test_sentences": COUNT_OR_NONE,
            "seed": NOT_COUNT,
            "parts": OR_NONE,
            "seconds": {name: value for name, value in NOT_FLOAT.items() if name != "None"} | {"zero": 0},
        },
    ),
    "prepare_part": Function(
        _plain(prepare_part),
        lambda api: {"number": 1, "parts": 1, "train": api.text, "out": api.out},
        {**COMMON_PREPARE, "number": NOT_POSITIVE | {"two": 2}, "parts": NOT_POSITIVE},
    ),
    "fit": Function(
        _plain(ncelm.fit),
        lambda api: {"train": api.text, "out": api.out, "workers": 1, "threads": 1, "progress": False},
        {
            **COMMON_PREPARE,
            **dict.fromkeys(("texts", "train_lines", "valid_lines", "test_lines"), STRINGS_OR_NONE),
            "train": NOT_TEXTS,
            "test": NOT_TEXTS,
            "lowercase": {name: value for name, value in NOT_BOOL.items() if name != "None"},
            "punkt": CHOICE_OR_NONE,
            "minutes": {name: value for name, value in NOT_FLOAT.items() if name != "None"} | {"zero": 0},
            "resume": NOT_BOOL,
            "min_count": OR_NONE,
            "vocabulary_size": OR_NONE | {"three": 3},
            "valid_sentences": COUNT_OR_NONE,
            "test_sentences": COUNT_OR_NONE,
            "seed": NOT_COUNT,
            "threads": OR_NONE,
        },
    ),
    "TokenStore.open": Function(_plain(ncelm.TokenStore.open), lambda api: {"path": api.store}, {"path": NOT_PATH}),
    "TokenStore.split": Function(lambda api: api.opened.split, lambda api: {"name": "valid"}, {"name": NOT_STR}),
    "contexts_and_targets": Function(
        _plain(contexts_and_targets),
        lambda api: {
            "ids": np.array([2, 3, 1]),
            "positions": [0, 1],
            "before": 2,
            "after": 1,
            "boundary": "stream",
            "end_id": 1,
            "pad_id": 1,
        },
        {
            "ids": NOT_IDS,
            "positions": NOT_IDS,
            "before": NOT_COUNT,
            "after": NOT_COUNT,
            "boundary": NOT_CHOICE,
            "end_id": NOT_INT | {"None": None},
            "pad_id": NOT_INT | {"None": None},
        },
    ),
    "Vocabulary": Function(
        _plain(ncelm.Vocabulary),
        lambda api: {"words": ["<unk>", "</s>", "a"], "counts": [1, 2, 3]},
        {
            "words": NOT_WORDS,
            "counts": {
                "str": "123",
                "None": None,
                "floats": [1.5, 2, 3],
                "strs": ["1", "2", "3"],
                "negative": [1, 2, -3],
                "huge": [1, 2, HUGE],
                "NaN": [1, 2, NAN],
                "bool": [1, 2, True],
                "few": [1, 2],
                "nested": [[1, 2, 3]],
                "float array": np.ones(3),
                "int": 3,
                "None inside": [1, 2, None],
            },
        },
    ),
    "Vocabulary.from_counts": Function(
        _plain(ncelm.Vocabulary.from_counts),
        lambda api: {"counts": {"a": 3, "b": 2}, "sentences": 2, "min_count": 1, "max_size": 10},
        {
            "counts": {
                "list": ["a"],
                "None": None,
                "str": "a",
                "float": {"a": 1.5},
                "negative": {"a": -1},
                "key": {3: 1},
                "huge": {"a": HUGE},
                "None inside": {"a": None},
            },
            "sentences": NOT_COUNT,
            "min_count": NOT_POSITIVE,
            "max_size": OR_NONE | {"three": 3},
        },
    ),
    "Vocabulary.id": Function(lambda api: api.opened.vocabulary.id, lambda api: {"word": "w1"}, {"word": NOT_STR}),
    "Vocabulary.word": Function(
        lambda api: api.opened.vocabulary.word, lambda api: {"id": 2}, {"id": NOT_INT | {"None": None}}
    ),
    "Vocabulary.encode": Function(
        lambda api: api.opened.vocabulary.encode, lambda api: {"words": ["w1"]}, {"words": NOT_WORDS}
    ),
    "Vocabulary.load": Function(
        _plain(ncelm.Vocabulary.load), lambda api: {"path": api.store / "vocab.txt"}, {"path": NOT_PATH}
    ),
    # -- training -------------------------------------------------------------------------------------------------
    "train": Function(
        _plain(ncelm.train),
        lambda api: {"store": api.store, "out": api.out, "dim": 4, "context": 1, "epochs": 1, "threads": 1},
        {
            "store": NOT_PATH,
            "out": NOT_PATH,
            "config": {"str": "default", "dict": {}, "class": ncelm.TrainConfig},
            "threads": OR_NONE,
            "resume": NOT_BOOL,
            "checkpoint_minutes": NOT_FLOAT,
            "watch": NOT_WORDS,
            "progress": NOT_CALLABLE,
            "track": NOT_WORDS | {"empty": "", "two": "wandb,mlflow", "list": ["mlflow"]},
            "dim": NOT_POSITIVE,
            "noise_samples": NOT_POSITIVE,
            "shared_noise": NOT_BOOL,
            "learning_rate": NOT_FLOAT | {"zero": 0},
            "seed": NOT_COUNT,
            "loss": NOT_CHOICE,
            "model": NOT_PART,
        },
    ),
    "train_ngram": Function(
        _plain(ncelm.train_ngram),
        lambda api: {"store": api.store, "out": api.out, "order": 2},
        {
            "store": NOT_PATH,
            "out": NOT_PATH,
            "order": NOT_POSITIVE | {"eleven": 11},
            "progress": NOT_CALLABLE,
            "min_counts": {
                "str": "12",
                "None": None,
                "int": 1,
                "float": [1, 1.5],
                "strs": ["1", "2"],
                "empty": [],
                "bool": [True],
                "falling": [1, 3, 2],
                "not one": [2],
                "huge": [1, HUGE],
                "NaN": [1, NAN],
                "object": THING,
            },
        },
    ),
    "train_lsa": Function(
        _plain(ncelm.train_lsa),
        lambda api: {"store": api.store, "out": api.out, "dim": 3},
        {"store": NOT_PATH, "out": NOT_PATH, "dim": NOT_POSITIVE, "seed": NOT_COUNT, "progress": NOT_CALLABLE},
    ),
    "train_pmi": Function(
        _plain(ncelm.train_pmi),
        lambda api: {"store": api.store, "out": api.out},
        {"store": NOT_PATH, "out": NOT_PATH},
    ),
    "recipe": Function(_plain(ncelm.recipe), lambda api: {"name": "ptb-fast"}, {"name": NOT_STR}),
    "TrainConfig": Function(
        _plain(ncelm.TrainConfig),
        lambda api: {"seed": 3, "learning_rate": 0.5},
        {
            "model": NOT_PART,
            "loss": NOT_PART,
            "noise": NOT_PART,
            "optimizer": NOT_PART,
            "schedule": NOT_PART,
            "regularization": NOT_PART,
            "init": NOT_PART,
            "distributed": NOT_PART,
            "seed": NOT_COUNT,
            "learning_rate": NOT_FLOAT | {"zero": 0},
            "matrix_lr_scale": NOT_FLOAT,
            "batch_size": NOT_POSITIVE,
            "bptt_length": NOT_POSITIVE,
            "engine": NOT_CHOICE,
        },
    ),
    "TrainConfig.with_changes": Function(
        _plain(ncelm.TrainConfig().with_changes),
        lambda api: {"dim": 5, "loss": "ranking", "dropout": 0},
        {
            "dim": NOT_POSITIVE,
            "loss": NOT_CHOICE,
            "noise": NOT_CHOICE,
            "optimizer": NOT_CHOICE,
            "model": NOT_PART,
            "shared_noise": NOT_BOOL,
            "tied_embeddings": NOT_BOOL,
            "epochs": NOT_FLOAT | {"zero": 0},
            "dropout": NOT_FLOAT,
            "init_from": {"None": None, "int": 3, "NUL": "a\0b", "list": ["x"]},
        },
    ),
    "ModelConfig": Function(
        _plain(ModelConfig),
        lambda api: {"dim": 3},
        {
            "dim": NOT_POSITIVE,
            "context": NOT_COUNT,
            "context_after": NOT_COUNT,
            "hidden": NOT_COUNT,
            "features": NOT_POSITIVE,
            "architecture": NOT_CHOICE,
            "matrices": NOT_CHOICE,
            "tied_embeddings": NOT_BOOL,
        },
    ),
    "NCE": Function(
        _plain(parts.NCE),
        lambda api: {"samples": 5},
        {
            "samples": NOT_POSITIVE,
            "shared_noise": NOT_BOOL,
            "log_normalizers": NOT_CHOICE,
            "log_z_penalty": NOT_FLOAT,
        },
        {"samples": "noise_samples"},
    ),
    # -- models ---------------------------------------------------------------------------------------------------
    "load": Function(
        _plain(ncelm.load), lambda api: {"path": api.run, "threads": 1}, {"path": NOT_PATH, "threads": OR_NONE}
    ),
    "load_scorer": Function(
        _plain(ncelm.load_scorer), lambda api: {"path": api.lsa, "threads": 1}, {"path": NOT_PATH, "threads": OR_NONE}
    ),
    "load_vectors": Function(
        _plain(load_vectors), lambda api: {"path": api.run}, {"path": NOT_PATH, "table": NOT_CHOICE}
    ),
    "Tokens": Function(_plain(ncelm.Tokens), lambda api: {"words": ["w1"]}, {"words": NOT_WORDS}),
    "score": Function(
        _lm("score"),
        lambda api: {"sentence": ["w1 w2", ncelm.Tokens(["w1"])]},
        {
            "sentence": {name: value for name, value in NOT_SENTENCE.items() if name != "words"},
            "end": NOT_BOOL,
            "mode": NOT_CHOICE,
        },
    ),
    "fit_normalizer": Function(
        _plain(ncelm.fit_normalizer),
        lambda api: {"path": api.run, "units": 3, "contexts": 20, "threads": 1},
        {
            "path": NOT_PATH,
            "store": {name: value for name, value in NOT_PATH.items() if name != "None"},
            "file": {name: value for name, value in NOT_PATH.items() if name != "None"},
            "encoding": NOT_STR,
            "units": OR_NONE,
            "contexts": NOT_POSITIVE,
            "seed": NOT_COUNT,
            "threads": OR_NONE,
            "progress": NOT_CALLABLE,
        },
    ),
    "full_scores": Function(
        _lm("full_scores"),
        lambda api: {"sentence": ncelm.Tokens(["w1"])},
        {"sentence": NOT_SENTENCE, "end": NOT_BOOL, "mode": NOT_CHOICE},
    ),
    "next_words": Function(
        _lm("next_words"), lambda api: {"context": "w1"}, {"context": NOT_SENTENCE, "n": NOT_POSITIVE}
    ),
    "distribution": Function(
        _lm("distribution"), lambda api: {"before": "w1"}, {"before": NOT_SENTENCE, "after": NOT_SENTENCE}
    ),
    "scores_of": Function(
        _lm("scores_of"),
        lambda api: {"sentences": ["w1"]},
        {"sentences": NOT_SENTENCES, "end": NOT_BOOL, "mode": NOT_CHOICE, "normalised": BOOL_OR_NONE},
    ),
    "full_scores_of": Function(
        _lm("full_scores_of"),
        lambda api: {"sentences": ["w1"]},
        {"sentences": NOT_SENTENCES, "end": NOT_BOOL, "mode": NOT_CHOICE, "normalised": BOOL_OR_NONE},
    ),
    "perplexity": Function(
        _lm("perplexity"),
        lambda api: {"sentences": "w1 w2"},
        {
            "sentences": {name: value for name, value in NOT_SENTENCES.items() if name != "str"}
            | {"ints": [1, 2], "None inside": ["w1", None], "nested": [["w1"]]}
        },
    ),
    "evaluate": Function(
        _lm("evaluate"),
        lambda api: {"sentences": ["w1 w2"]},
        {"sentences": NOT_SENTENCES | {"ints": [1, 2], "None inside": ["w1", None], "nested": [["w1"]]}},
    ),
    "evaluate_split": Function(
        _lm("evaluate_split"),
        lambda api: {"store": api.store, "name": "valid"},
        {"store": NOT_PATH, "name": NOT_STR},
    ),
    "check_store": Function(_lm("check_store"), lambda api: {"store": api.opened}, {"store": NOT_MODEL}),
    "choice_scores": Function(
        _lm("choice_scores"), lambda api: {"gaps": [Gap(["w1"], [["w2"], ["w3"]], [])]}, {"gaps": GAPS}
    ),
    "most_likely": Function(
        _lm("most_likely"),
        lambda api: {"before": ["w1"], "after": []},
        WORD_QUERY | {"candidates": NOT_POSITIVE},
    ),
    "neighbors": Function(
        _lm("neighbors"), lambda api: {"word": "w1"}, {"word": NOT_STR, "n": NOT_POSITIVE, "table": NOT_CHOICE}
    ),
    "vectors": Function(_lm("vectors"), lambda api: {"table": "target"}, {"table": NOT_CHOICE}),
    "Lsa.load": Function(_plain(ncelm.Lsa.load), lambda api: {"path": api.lsa}, {"path": NOT_PATH}),
    "Lsa.choice_scores": Function(
        lambda api: api.lsa_model.choice_scores, lambda api: {"gaps": [Gap(["w1"], [["w2"]], [])]}, {"gaps": GAPS}
    ),
    "Lsa.most_likely": Function(
        lambda api: api.lsa_model.most_likely, lambda api: {"before": ["w1"], "after": ["w2"]}, WORD_QUERY
    ),
    "Lsa.neighbors": Function(
        lambda api: api.lsa_model.neighbors,
        lambda api: {"word": "w1"},
        {"word": NOT_STR, "n": NOT_POSITIVE, "table": NOT_CHOICE},
    ),
    "Lsa.vectors": Function(lambda api: api.lsa_model.vectors, lambda api: {}, {"table": NOT_CHOICE}),
    "Pmi.load": Function(_plain(ncelm.Pmi.load), lambda api: {"path": api.pmi}, {"path": NOT_PATH}),
    "Pmi.choice_scores": Function(
        lambda api: api.pmi_model.choice_scores, lambda api: {"gaps": [Gap(["w1"], [["w2"]], [])]}, {"gaps": GAPS}
    ),
    "Pmi.most_likely": Function(
        lambda api: api.pmi_model.most_likely, lambda api: {"before": ["w1"], "after": ["w2"]}, WORD_QUERY
    ),
    "nearest_words": Function(
        _plain(nearest_words),
        lambda api: {
            "vectors": api.lm.vectors(),
            "vocabulary": api.lm.vocabulary,
            "text": api.lm.text,
            "word": "w1",
            "n": 3,
        },
        {"vectors": {"None": None, "list": [[1.0]], "flat": np.ones(3)}, "word": NOT_STR, "n": NOT_POSITIVE},
    ),
    "export_vectors": Function(
        _plain(export_vectors),
        lambda api: {"scorer": api.lm, "path": api.out},
        {"scorer": NOT_MODEL, "path": NOT_PATH, "kind": NOT_CHOICE, "table": NOT_CHOICE},
    ),
    "NGramModel.log_probabilities_after": Function(
        lambda api: api.ngram_model.log_probabilities_after,
        lambda api: {"history": [2, 3]},
        {"history": NOT_IDS | {"negative": [-1], "too large": [1000], "huge": [HUGE]}},
    ),
    # -- combinations and files -----------------------------------------------------------------------------------
    "write_report": Function(
        _plain(ncelm.write_report),
        lambda api: {"runs": [api.run, api.ngram], "out": api.out, "samples": False},
        {
            "runs": NOT_TEXTS | {"None": None, "none": []},
            "out": PATH_OR_NONE,
            "store": PATH_OR_NONE,
            "samples": NOT_BOOL,
            "threads": OR_NONE,
        },
    ),
    "report_data": Function(
        _plain(ncelm.report_data),
        lambda api: {"runs": api.run, "threads": 1},
        {
            "runs": NOT_TEXTS | {"None": None, "none": []},
            "store": PATH_OR_NONE,
            "samples": NOT_BOOL,
            "threads": OR_NONE,
        },
    ),
    "mix": Function(
        _plain(ncelm.mix),
        lambda api: {"runs": [api.run, api.ngram], "out": api.out, "weights": [0.5, 0.5]},
        {
            "runs": NOT_PATHS | {"one": ["run"], "none": []},
            "out": NOT_PATH,
            "store": PATH_OR_NONE,
            "split": NOT_STR,
            "threads": OR_NONE,
            "progress": NOT_CALLABLE,
            "weights": {
                "str": "ab",
                "int": 1,
                "strs": ["0.5", "0.5"],
                "NaN": [NAN, 1.0],
                "inf": [INF, 0.0],
                "empty": [],
                "negative": [-0.5, 1.5],
                "few": [1.0],
                "many": [0.5, 0.25, 0.25],
                "sum": [0.5, 0.6],
                "None inside": [None, 1.0],
                "nested": [[0.5, 0.5]],
                "huge": [HUGE, 0],
                "bool": [True, 0],
                "dict": {},
            },
        },
    ),
    "blend": Function(
        _plain(ncelm.blend),
        lambda api: {"runs": [api.big_lsa, api.big_pmi], "out": api.out},
        {
            "runs": NOT_PATHS | {"one": ["run"]},
            "out": NOT_PATH,
            "store": PATH_OR_NONE,
            "split": NOT_STR,
            "seed": NOT_COUNT,
            "threads": OR_NONE,
            "progress": NOT_CALLABLE,
        },
    ),
    "generate_questions": Function(
        _plain(generate_questions),
        lambda api: {"store": api.opened, "split": "valid", "proposal": None},
        {
            "store": NOT_MODEL,
            "split": NOT_STR,
            "proposal": {"str": "run", "object": THING, "int": 3},
            "seed": NOT_COUNT,
        },
    ),
    "import_arpa": Function(
        _plain(ncelm.import_arpa),
        lambda api: {"path": api.arpa, "out": api.out},
        {
            "path": NOT_PATH,
            "out": NOT_PATH,
            "like": PATH_OR_NONE,
            "lowercase": NOT_BOOL,
            "progress": NOT_CALLABLE,
        },
    ),
    "export_arpa": Function(
        _plain(ncelm.export_arpa),
        lambda api: {"run_folder": api.ngram, "path": api.out},
        {"run_folder": NOT_PATH, "path": NOT_PATH, "progress": NOT_CALLABLE},
    ),
    # -- completion -----------------------------------------------------------------------------------------------
    "completion.Question": Function(
        _plain(completion.Question),
        lambda api: {"id": "1", "sentence": "a _____ b", "choices": ["x", "y"]},
        {
            "id": NOT_STR,
            "sentence": NOT_STR,
            "choices": NOT_WORDS | {"empty": (), "nested": [["a", "b"]], "semicolon": [["a;b"]]},
            "answer": {"int": 1, "other": "z", "empty": ""},
        },
    ),
    "completion.rank": Function(
        _plain(completion.rank),
        lambda api: {"scorer": api.lm, "questions": api.questions},
        {
            "scorer": NOT_MODEL,
            "normalised": NOT_BOOL,
            "unknown": NOT_CHOICE,
            "progress": NOT_CALLABLE,
            "questions": {"str": "q", "None": None, "strs": ["w1 _____"], "int": 3, "object": THING},
        },
    ),
    "completion.most_likely": Function(
        _plain(completion.most_likely),
        lambda api: {"scorer": api.lm, "sentence": "w1 _____ w2"},
        {"scorer": NOT_MODEL, "sentence": NOT_STR, "n": NOT_POSITIVE},
    ),
    "completion.unknown_choices": Function(
        _plain(completion.unknown_choices),
        lambda api: {"scorer": api.lm, "choices": ["w1", "never"]},
        {"scorer": NOT_MODEL, "choices": NOT_WORDS},
    ),
    "completion.accuracy": Function(
        _plain(completion.accuracy),
        lambda api: {"rankings": [completion.Ranking("1", ("a", "b"), (1.0, 0.0))], "answers": {"1": "a"}},
        {
            "rankings": {"None": None, "str": "x", "empty": [], "strs": ["x"]},
            "answers": {"None": None, "str": "a", "list": ["a"], "empty": {}},
        },
    ),
    "completion.read_questions": Function(
        _plain(completion.read_questions), lambda api: {"path": api.questions_file}, {"path": NOT_PATH}
    ),
    "completion.read_answers": Function(
        _plain(completion.read_answers),
        lambda api: {"path": api.answers_file, "questions": api.questions},
        {"path": NOT_PATH, "questions": {"None": None, "str": "q", "strs": ["q"]}},
    ),
    # -- noise ----------------------------------------------------------------------------------------------------
    "Noise.from_probabilities": Function(
        _plain(Noise.from_probabilities),
        lambda api: {"probabilities": [0.5, 0.5]},
        {"probabilities": {k: v for k, v in NOT_NUMBERS.items() if k not in ("NaN", "inf", "negative")}},
    ),
    "Noise.from_counts": Function(
        _plain(Noise.from_counts),
        lambda api: {"counts": [3, 2, 0], "kind": "power"},
        {"counts": NOT_NUMBERS, "kind": NOT_CHOICE, "power": NOT_FLOAT},
    ),
    "Noise.sample": Function(
        _plain(Noise.from_counts([3, 2, 1]).sample),
        lambda api: {"shape": (2, 3), "seed": 1},
        {
            "shape": {"int": 3, "one": (3,), "negative": (2, -1), "floats": (1.5, 2), "None": None, "str": "23"},
            "seed": NOT_COUNT,
            "step": NOT_COUNT,
        },
    ),
    "Noise.table": Function(_plain(Noise.from_counts([3, 2, 1]).table), lambda api: {"k": 5}, {"k": NOT_POSITIVE}),
    "BigramNoise.from_store": Function(
        _plain(BigramNoise.from_store),
        lambda api: {"store": api.opened, "smoothing": 10},
        {"store": NOT_MODEL, "smoothing": NOT_FLOAT | {"zero": 0}},
    ),
    "BigramNoise.log_probabilities": Function(
        lambda api: BigramNoise.from_store(api.opened, 10.0).log_probabilities,
        lambda api: {"before": 2},
        {"before": NOT_COUNT | {"too large": 1000}},
    ),
    "noise_of": Function(
        _plain(noise_of),
        lambda api: {"store": api.opened, "kind": "power", "power": 0.5, "smoothing": 0.0},
        {"store": NOT_MODEL, "kind": NOT_CHOICE, "power": NOT_FLOAT},
    ),
}

CASES = [
    pytest.param(name, parameter, value, id=f"{name}-{parameter}-{kind}")
    for name, function in FUNCTIONS.items()
    for parameter, values in function.invalid.items()
    for kind, value in values.items()
]


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    """A store and runs of all kinds; `out` and `folder` are set by each test."""
    folder = tmp_path_factory.mktemp("api")
    opened = store_of(folder, random_lines(1, sentences=60))
    config = ModelConfig(context=2, dim=4)
    model = LogBilinear.initialise(config, np.full(len(opened.vocabulary), 1 / len(opened.vocabulary)), 0, 0.1)
    made = SimpleNamespace(text=folder / "text", store=folder / "store", opened=opened, lsa=folder / "lsa")
    made.pmi, made.ngram, made.arpa = folder / "pmi", folder / "ngram", folder / "ngram.arpa"
    made.run = save_model(folder / "run", opened, model)
    made.lm = ncelm.load(made.run, threads=1)
    made.lsa_model, made.pmi_model = ncelm.train_lsa(opened, made.lsa, dim=3), ncelm.train_pmi(opened, made.pmi)
    ncelm.train_ngram(opened, made.ngram, order=2)
    made.ngram_model = ncelm.export_arpa(made.ngram, made.arpa).model
    # `blend` makes questions about words that occur at least 20 times, in sentences of at least eight words
    (folder / "big").mkdir()
    words, random = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"], np.random.default_rng(0)
    big = store_of(folder / "big", [" ".join(random.choice(words, 9)) for _ in range(60)])
    made.big_lsa, made.big_pmi = folder / "big/lsa", folder / "big/pmi"
    ncelm.train_lsa(big, made.big_lsa, dim=3)
    ncelm.train_pmi(big, made.big_pmi)
    made.questions_file, made.answers_file = folder / "questions.csv", folder / "answers.csv"
    made.questions_file.write_text("1,w1 _____ w2,w1,w2,w3,w4,w5\n")
    made.answers_file.write_text("1,a\n")
    made.questions = completion.read_questions(made.questions_file)
    return made


@pytest.fixture
def folder(api, tmp_path, monkeypatch):
    """An empty working directory, in which a function could write."""
    api.out = tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FUNCTIONS)
def test_valid_arguments(api, folder, name):
    function = FUNCTIONS[name]
    arguments = function.valid(api)
    result = function.of(api)(**arguments)
    assert (result is None) == (name in ("check_store",))
    if any(value is api.out for value in arguments.values()):
        assert any(folder.iterdir())
    if hasattr(result, "__next__"):
        assert len(list(result)) == 1


def test_there_are_many_cases():
    assert len(CASES) > 1000


@pytest.mark.parametrize(("name", "parameter", "value"), CASES)
def test_invalid_arguments(api, folder, name, parameter, value):
    function = FUNCTIONS[name]
    call, arguments = function.of(api), function.valid(api)
    if parameter == "texts":
        arguments.pop("train")
    with pytest.raises((NcelmError, TypeError, ValueError)) as caught:
        call(**{**arguments, parameter: value})
    message = str(caught.value)
    assert isinstance(caught.value, NcelmError)
    assert re.search(rf"\b{(function.named or {}).get(parameter, parameter)}\b", message)
    assert len(message.splitlines()) == 1
    assert len(message) < 300
    assert not re.search(r"(^|\W)--\w", message)
    assert list(folder.iterdir()) == []


# -- other errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dims", "estimator", "Dim", "threads_"])
def test_unknown_options_of_train(api, folder, name):
    with pytest.raises(TypeError, match=rf"^there is no training option '{name}'") as caught:
        ncelm.train(api.store, api.out, **{name: 3})
    assert isinstance(caught.value, NcelmError)
    assert "--" not in str(caught.value)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "gap",
    [
        "w1",
        ("w1",),
        Gap("w1", [["w2"]], []),
        Gap(["w1"], ["w2"], []),
        Gap([], [[3]], []),
        Gap([], [["w1"]], [], [["w2"]]),
        Gap([], [[["w1"], [3]]], [], [["w2"]]),
        Gap([], [[["w1"], ["w1"]]], [], ["w2"]),
    ],
)
@pytest.mark.parametrize("model", ["lm", "lsa_model", "pmi_model"])
def test_invalid_gaps_are_errors_when_they_are_read(api, model, gap):
    with pytest.raises(TypeError, match=r"`(gaps|before|choices|between)`") as caught:
        list(getattr(api, model).choice_scores([gap]))
    assert isinstance(caught.value, NcelmError)


@pytest.mark.parametrize("model", ["lm", "lsa_model", "pmi_model"])
def test_a_choice_has_words_for_each_gap(api, model):
    with pytest.raises(ValueError, match=r"`choices` is .*: give a list of lists of words, 2 for each choice"):
        list(getattr(api, model).choice_scores([Gap([], [[["w1"]]], [], [["w2"]])]))


@pytest.mark.parametrize("method", ["scores_of", "full_scores_of"])
@pytest.mark.parametrize("sentence", [3, None, [1], b"w1", {"w1": 1}, ["w1", "w2"]])
def test_invalid_sentences_are_errors_when_they_are_read(api, method, sentence):
    with pytest.raises(TypeError, match=r"`sentences` has .*: a sentence is a string; give words as ncelm.Tokens"):
        list(getattr(api.lm, method)(["w1", sentence]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda api: api.opened.split("dev"), "has no dev split"),
        (lambda api: ncelm.recipe("best"), "no recipe 'best'"),
        (lambda api: ncelm.train(api.store, api.out, recipe="best"), "no recipe 'best'"),
        (lambda api: ncelm.train(api.store, api.out, ncelm.TrainConfig(), recipe="ptb-fast"), "`recipe` or `config`"),
        (lambda api: ncelm.prepare(out=api.out), "either prose .* or `train`"),
        (lambda api: ncelm.prepare([], out=api.out), "either prose .* or `train`"),
        (lambda api: ncelm.prepare(train=api.text, out=api.out, encoding="x\n"), "no text encoding"),
        (lambda api: ncelm.train(api.store, api.out, watch=["dev"]), "has no dev split"),
        (lambda api: ncelm.train(api.store, api.out, dim=5, loss="ml", noise_samples=3), "`noise_samples` goes with"),
        (lambda api: api.lm.neighbors("never"), "'never' is not in the model's vocabulary"),
        (lambda api: api.lm.perplexity([]), "no text to evaluate"),
        (lambda api: api.lm.evaluate_split(api.store, "dev"), "has no dev split"),
        (lambda api: ncelm.mix([api.run, api.ngram], api.out, split="dev"), "has no dev split"),
        (lambda api: ncelm.mix([api.run, api.lsa], api.out), "has no probabilities of words"),
        (lambda api: completion.most_likely(api.lm, "no gap"), "has no gaps"),
        (lambda api: Noise.from_probabilities([1.0, 0.0]), "noise weight of word 1 is 0"),
        (lambda api: Noise.from_counts([1, 2], "bigram"), "needs the training text"),
    ],
)
def test_values_that_depend_on_other_arguments(api, folder, call, message):
    with pytest.raises(NcelmError, match=message) as caught:
        call(api)
    assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("id", [-1, 1000, 2**62])
def test_ids_of_no_word_are_index_errors(api, id):
    with pytest.raises(IndexError, match="`id` is"):
        api.opened.vocabulary.word(id)


def test_numbers_of_numpy_are_accepted_and_become_those_of_python(api, folder):
    config = ncelm.TrainConfig().with_changes(dim=np.int64(5), learning_rate=np.float32(0.5), epochs=np.uint8(2))
    assert (type(config.model.dim), type(config.learning_rate)) == (int, float)
    ncelm.train_ngram(api.store, api.out, order=np.int64(2), min_counts=np.array([1, 2]))
    assert len(api.lm.most_likely(["w1"], [], n=np.int32(2))) == 2
    assert len(api.lm.neighbors(np.str_("w1"), np.uint8(3))) == 3

"""Random command lines, and calls of the Python functions with invalid arguments."""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.hostile.corpus import WORDS, Corpus, splits
from tests.hostile.outcome import HARMLESS, REJECTED, Family, Place, Violation, without_attack
from tests.hostile.tools import check_command, command

import ncelm
from ncelm import completion
from ncelm.errors import NcelmError

# -- command lines ---------------------------------------------------------------------------------------------------

VALUES = (
    "-1",
    "0",
    "1",
    "2",
    "3",
    "1.5",
    "-0.1",
    "nan",
    "inf",
    "-inf",
    "1e-300",
    "1e300",
    "x",
    "",
    " ",
    "é",
    "--",
    "-",
    "1,2",
)
HUGE = ("1000000000000000000", "99999999999999999999999", "1" * 5000)
CHOICES = (
    *(
        "full",
        "diagonal",
        "nce",
        "ranking",
        "ml",
        "importance",
        "family",
        "unigram",
        "uniform",
        "power",
        "bigram",
        "adam",
    ),
    *(
        "sgd",
        "adagrad",
        "linear",
        "halve",
        "learned",
        "fixed",
        "compiled",
        "torch",
        "context",
        "target",
        "train",
        "valid",
    ),
    *(
        "test",
        "stream",
        "sentence",
        "english",
        "word2vec",
        "glove",
        "word2vec-binary",
        "utf-8",
        "latin-1",
        "no-such",
        "1/2",
    ),
    *("0/2", "3/2", "x/y", "default", "ptb-nce", "lstm", "feed-forward", "maximum-entropy", "log-bilinear", "square"),
)
# Options whose large values are possible, and take long
SLOW = (
    "--epochs",
    "--noise-samples",
    "--max-samples",
    "--patience",
    "--bptt-length",
    "--order",
    "--workers",
    "--hidden",
    "--dim",
)
OPTIONS = {
    "prepare": "--train --valid --test --punkt --valid-sentences --test-sentences --seed --gutenberg --skip-broken "
    "--lowercase --min-count --vocabulary-size --boundary --encoding --column --blank-lines --json",
    "train": "--resume --checkpoint-minutes --threads --json --context --dim --matrices --context-after "
    "--tied-embeddings --no-tied-embeddings --model --loss --noise-samples --shared-noise --noise --noise-power "
    "--bigram-smoothing --log-normalizers --log-z-penalty --family-member --min-effective-samples --max-samples "
    "--epochs --learning-rate --lr --batch-size --optimizer --schedule --matrix-lr-scale --warmup-steps "
    "--initial-accumulator --adam-beta1 --adam-beta2 --adam-epsilon --patience --min-improvement --seed --dropout "
    "--weight-decay --weight-decay-per-epoch --init-std --init-from --engine --hidden --features --bptt-length "
    "--clip-norm --sync-interval",
    "ngram train": "--order --min-counts --json",
    "ngram to-arpa": "--json",
    "ngram from-arpa": "--like --lowercase --json",
    "lsa train": "--dim --seed --json",
    "pmi train": "--json",
    "mix": "--weights --store --split --threads --json",
    "blend": "--store --split --seed --threads --json",
    "evaluate": "--split --store --file --encoding --threads --json",
    "score": "--per-word --no-end --unnormalised --shard --encoding --threads --json",
    "complete": "--answers --each --choices --count --unnormalised --threads --json",
    "neighbors": "--count --table --json",
    "export": "--to --table --json",
}
FLAGS_WITHOUT_VALUE = (
    *("--json", "--resume", "--lowercase", "--gutenberg", "--skip-broken", "--per-word", "--no-end", "--unnormalised"),
    *("--each", "--shared-noise", "--tied-embeddings", "--no-tied-embeddings"),
)


def _positional(random: Random, place: Place, name: str) -> list[object]:
    """Return the arguments that a command needs, mostly valid."""
    folder, out = place.corpus.folder, place.folder / "out"
    run = folder / random.choice(place.corpus.runs)
    store = folder / random.choice(("store", "stream", "prose"))
    match name:
        case "prepare":
            return ["--train", folder / "train.txt", "--valid", folder / "valid.txt", "--out", out, "--workers", 1]
        case "train":
            return [store, "--out", out, "--epochs", 1, "--dim", 3, "--noise-samples", 2, "--threads", 1]
        case "ngram train" | "pmi train":
            return [store, "--out", out]
        case "lsa train":
            return [store, "--out", out, "--dim", 3]
        case "ngram to-arpa":
            ngram = folder / random.choice(("ngram", "imported", "imported-like"))
            return [random.choice((run, ngram, ngram, ngram)), place.folder / "out.arpa"]
        case "ngram from-arpa":
            return [folder / "ngram.arpa", "--out", out]
        case "mix" | "blend":
            names = [
                "ngram",
                "tied",
                "log-bilinear",
                "two-sided",
                "mixture",
                *(["lsa", "pmi"] if name == "blend" else []),
            ]
            other = random.choice((run, *(folder / each for each in names)))
            return [folder / random.choice(names), other, "--out", out]
        case "complete":
            sentence = f"{WORDS[0]} _____ {WORDS[1]}"
            return [run, random.choice((folder / "questions.csv", folder / "machine.txt", sentence, "no gap", "__ __"))]
        case "neighbors":
            return [run, WORDS[0], WORDS[5]]
        case "export":
            return [run, place.folder / "out.vec"]
        case "score":
            return [run, folder / "test.txt"]
        case _:
            return [run]


def random_command_line(random: Random, place: Place) -> str:
    """Run a command with random options."""
    name = random.choice(sorted(OPTIONS))
    words = [*name.split(), *_positional(random, place, name)]
    known = OPTIONS[name].split()
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        flag = random.choice(known) if random.random() < 0.95 else random.choice(("--no-such", "--", "-x", "--JSON"))
        words.append(flag)
        if flag not in FLAGS_WITHOUT_VALUE or random.random() < 0.03:
            values = VALUES if flag in SLOW else (*VALUES, *HUGE)
            paths = [str(place.corpus.folder / path) for path in ("store", "ngram", "lsa", "train.txt", "missing")]
            words.append(random.choice(random.choice((values, CHOICES, paths))))
    if random.random() < 0.1:
        del words[random.randrange(1, len(words))]
    if random.random() < 0.05:
        words.insert(random.randrange(1, len(words) + 1), random.choice((*VALUES, "/", "\udcff", "a\nb")))
    with contextlib.chdir(place.folder), open(os.devnull) as nothing, _standard_input(nothing):  # noqa: PTH123
        code, out, errors = command(words)
    shown = " ".join(str(word)[:60] for word in words)
    try:
        outcome = check_command(code, errors)
    except Violation as violation:
        raise Violation(f"{violation} (ncelm {shown})") from None
    if outcome == REJECTED and sum(line.startswith("ncelm: ") for line in errors.splitlines()) == 0:
        raise Violation(f"no message: ncelm {shown}")
    if outcome == REJECTED and (place.folder / "out").exists() and name != "train":
        raise Violation(f"a command that failed has made its output: ncelm {shown}")
    if "--json" in words and outcome == HARMLESS and ("NaN" in out or "Infinity" in out):
        raise Violation(f"JSON with a number that is not finite: ncelm {shown}: {out[:200]}")
    return outcome


@contextlib.contextmanager
def _standard_input(file: Any) -> Any:
    former, sys.stdin = sys.stdin, file
    try:
        yield
    finally:
        sys.stdin = former


# -- Python functions ------------------------------------------------------------------------------------------------


class Odd:
    """An object without any useful method."""


ARGUMENTS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 10**6, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.0, -0.0, 0.5, 1.5, -1.0, 1e308),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        1j,
        "",
        " ",
        "x",
        "a b",
        "\0",
        "\ud800",
        "é",
        "x" * 10_000,
        b"x",
        b"\xff",
    ),
    *([], [1], ["a"], [[]], [None], (), {}, {"a": 1}, set(), range(3), Odd(), Odd, len, np.float32(1), np.int64(2)),
    *(
        np.zeros(0),
        np.zeros(3),
        np.zeros((2, 2)),
        np.array("x"),
        np.array([np.nan]),
        np.array(None),
        Path(),
        Path("missing"),
    ),
    *(
        ["a", 1],
        [float("nan")],
        [0.5, 0.5],
        iter(()),
        memoryview(b"x"),
        type,
        NotImplemented,
        ...,
        -1e-9,
        3,
        "3",
        "1e3",
    ),
)


def public_functions(corpus: Corpus, place: Place) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return the public functions, each with valid arguments."""
    folder, out = corpus.folder, place.folder / "out"
    store, run = folder / "store", folder / "log-bilinear"
    lm = ncelm.load(run, threads=1)
    pmi = ncelm.Pmi.load(folder / "pmi")
    lsa = ncelm.Lsa.load(folder / "lsa")
    own = place.folder / "tied"
    if not own.exists():
        corpus.copy(["tied"], place.folder)
    small = {"dim": 3, "epochs": 1, "noise_samples": 2, "context": 2, "batch_size": 200}
    words = [WORDS[0], WORDS[1]]
    return {
        "prepare": (ncelm.prepare, {**splits(folder), "out": out, "workers": 1, "min_count": 1, "lowercase": False,
                    "boundary": "stream", "vocabulary_size": None, "encoding": "utf-8", "seed": 0}),
        "train": (ncelm.train, {"store": store, "out": out, "threads": 1, "resume": False, "checkpoint_minutes": 5.0,
                  "watch": (), "seed": 0, "learning_rate": 0.1, "optimizer": "adagrad", "loss": "nce", **small}),
        "train_ngram": (ncelm.train_ngram, {"store": store, "out": out, "order": 2, "min_counts": (1,)}),
        "train_lsa": (ncelm.train_lsa, {"store": store, "out": out, "dim": 3, "seed": 0}),
        "train_pmi": (ncelm.train_pmi, {"store": store, "out": out}),
        "mix": (ncelm.mix, {"runs": [run, folder / "ngram"], "out": out, "weights": [0.5, 0.5], "store": store,
                "split": "valid", "threads": 1}),
        "blend": (ncelm.blend, {"runs": [folder / "lsa", folder / "pmi"], "out": out, "store": store, "split": "valid",
                  "seed": 0, "threads": 1}),
        "import_arpa": (ncelm.import_arpa, {"path": folder / "ngram.arpa", "out": out, "like": store, "lowercase": False}),  # noqa: E501
        "export_arpa": (ncelm.export_arpa, {"run_folder": folder / "ngram", "path": place.folder / "out.arpa"}),
        "load": (ncelm.load, {"path": run, "threads": 1}),
        "load_scorer": (ncelm.load_scorer, {"path": folder / "lsa", "threads": 1}),
        "TokenStore.open": (ncelm.TokenStore.open, {"path": store}),
        "Vocabulary": (ncelm.Vocabulary, {"words": ["<unk>", "</s>", "a"], "counts": [0, 1, 2]}),
        "Vocabulary.from_counts": (ncelm.Vocabulary.from_counts,
                                   {"counts": {"a": 2, "b": 1}, "sentences": 3, "min_count": 1, "max_size": None}),
        "Vocabulary.load": (ncelm.Vocabulary.load, {"path": store / "vocab.txt"}),
        "Vocabulary.word": (lm.vocabulary.word, {"id": 3}),
        "Vocabulary.id": (lm.vocabulary.id, {"word": WORDS[0]}),
        "Vocabulary.encode": (lm.vocabulary.encode, {"words": words}),
        "score": (lm.score, {"sentence": words, "end": True}),
        "fit_normalizer": (ncelm.fit_normalizer, {"path": own, "store": store, "units": 3, "contexts": 50, "seed": 0,
                           "threads": 1}),
        "Tokens": (ncelm.Tokens, {"words": words}),
        "next_words": (lm.next_words, {"context": " ".join(words), "n": 3}),
        "distribution": (lm.distribution, {"before": " ".join(words), "after": ""}),
        "full_scores": (lm.full_scores, {"sentence": " ".join(words), "end": True}),
        "scores_of": (lambda **given: list(lm.scores_of(**given)), {"sentences": words, "end": True, "mode": "fast"}),
        "perplexity": (lm.perplexity, {"sentences": [" ".join(words)]}),
        "evaluate": (lm.evaluate, {"sentences": words}),
        "evaluate_split": (lm.evaluate_split, {"store": store, "name": "valid"}),
        "most_likely": (lm.most_likely, {"before": words, "after": [], "n": 3}),
        "lsa.most_likely": (lsa.most_likely, {"before": words, "after": [], "n": 3}),
        "pmi.most_likely": (pmi.most_likely, {"before": words, "after": [], "n": 3}),
        "neighbors": (lm.neighbors, {"word": WORDS[0], "n": 3, "table": "context"}),
        "lsa.neighbors": (lsa.neighbors, {"word": WORDS[0], "n": 3, "table": "context"}),
        "vectors": (lm.vectors, {"table": "target"}),
        "ModelConfig": (ncelm.ModelConfig, {"context": 2, "dim": 3, "matrices": "full", "context_after": 0}),
        "recipe": (ncelm.recipe, {"name": "paper/ptb-fast"}),
        "Noise.from_counts": (ncelm.Noise.from_counts, {"counts": np.array([3, 2, 1]), "kind": "power", "power": 0.75}),
        "Noise.from_probabilities": (ncelm.Noise.from_probabilities, {"probabilities": np.array([0.5, 0.25, 0.25])}),
        "Noise.sample": (ncelm.Noise.from_counts(np.array([3, 2, 1])).sample, {"shape": (2, 3), "seed": 0, "step": 0}),
        "read_questions": (completion.read_questions, {"path": folder / "questions.csv"}),
        "completion.most_likely": (completion.most_likely, {"scorer": lm, "sentence": f"{WORDS[0]} _____", "n": 3}),
        "Question": (completion.Question, {"id": "1", "sentence": "a _____ b", "choices": ("a", "b")}),
    }  # fmt: skip


# Large values of these are possible, and take long
LONG = ("epochs", "noise_samples", "n", "shape", "dim", "batch_size", "context", "context_after", "contexts")


def invalid_arguments(random: Random, place: Place) -> str:
    """Call a public function with invalid values of one or two parameters."""
    with without_attack():
        functions = public_functions(place.corpus, place)
    name = random.choice(sorted(functions))
    function, arguments = functions[name]
    changed = random.sample(sorted(arguments), min(random.choice((1, 1, 1, 2)), len(arguments)))
    for parameter in changed:
        value = random.choice(ARGUMENTS)
        while parameter in LONG and isinstance(value, int) and 3 < value <= 2**31:
            value = random.choice(ARGUMENTS)
        arguments[parameter] = value
    if random.random() < 0.03:
        arguments["no_such_parameter"] = 1
        changed.append("no_such_parameter")
    call = f"{name}({', '.join(f'{parameter}={str(arguments[parameter])[:60]!r}' for parameter in changed)})"
    try:
        with contextlib.chdir(place.folder):
            function(**arguments)
    except NcelmError as error:
        if "\n" in str(error):
            raise Violation(f"{call}: the message is not one line: {error}") from error
        return REJECTED
    except (TypeError, ValueError, IndexError) as error:
        # an error of Python itself is fine if it names the parameter: a missing or an unknown one, an id
        if not any(parameter in str(error) for parameter in changed):
            raise Violation(f"{call}: {type(error).__name__} does not name the parameter: {error}") from error
        return REJECTED
    except Exception as error:
        raise Violation(f"{call}: {type(error).__name__}: {error}") from error
    return HARMLESS


FAMILIES = [
    Family("command-lines", random_command_line, share=3, timeout=60),
    Family("python-calls", invalid_arguments, share=3, timeout=60),
]

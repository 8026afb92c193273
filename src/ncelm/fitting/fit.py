"""`ncelm.fit`: a text to one folder with the best model for it in a given time.

The folder is a mixture, and contains what it consists of:

    config.json, vocab.txt    the mixture; written by the stage "mix"
    store                     the token store
    ngram                     a 5-gram model
    neural                    a log-bilinear model
    fit.json                  finished stages, choices, results
    report.html               the report

All references are relative to the folder, so that it can be moved.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ncelm.arguments import check_bool, check_float, check_int, check_path
from ncelm.arguments import shown as shown_value
from ncelm.combine import score_split, write_mixture
from ncelm.errors import NcelmError, Terminated
from ncelm.fitting import budget
from ncelm.fitting.budget import HeldOut
from ncelm.fitting.state import STAGES, State
from ncelm.io import run
from ncelm.io.files import atomic_folder, exclusive_lock, is_finite_number
from ncelm.io.machine import available_cores, started_by_torchrun, total_memory
from ncelm.kernels.threads import check_threads
from ncelm.language_model import LanguageModel
from ncelm.models import description, mixture
from ncelm.models.ngram.estimate import train_ngram
from ncelm.progress import check_progress, shown
from ncelm.report import write_report
from ncelm.text.archives import REPORT
from ncelm.text.pieces import FILES
from ncelm.text.prepare import MAX_WORKERS, Paths, Strings, prepare
from ncelm.text.sentences import SentenceSplitter
from ncelm.text.store import SPLITS, Boundary, Split, TokenStore, read_settings
from ncelm.training.adaptive import default_config
from ncelm.training.loop import configure, train
from ncelm.training.precompile import compile_for
from ncelm.training.validation import score_cost

STORE, NEURAL, NGRAM, LOCK, COMPILED = "store", "neural", "ngram", "fit.lock", "compile.tmp"
COMPONENTS = (NEURAL, NGRAM)
ORDER = 5  # of the n-gram model, if there are sentences of this length
BLOCKS = 100  # of sentences, evenly spaced: the part of a text that an n-gram model is estimated from
MEASURED_WORDS = 250  # that are scored to find the time of exact scoring
IN_MEMORY = ("texts", "train_lines", "valid_lines", "test_lines")
TEXTS = ("files", "train", "valid", "test", *IN_MEMORY)
DEFAULTS = {
    "blank_lines": "skip", "encoding": "utf-8", "gutenberg": False, "normalize": "none", "skip_broken": False,
    "seed": 0,
}  # fmt: skip
TITLES = {
    "prepare": "preparing the text",
    "ngram": "estimating the n-gram model",
    "train": "training the neural model",
    "mix": "learning the weights of the mixture",
    "evaluate": "evaluating on held-out text",
    "report": "writing the report",
}


@dataclass(frozen=True)
class Stage:
    """The beginning of a stage of `fit`."""

    name: str
    number: int  # the first is 1
    stages: int
    seconds_left: float | None  # of the time that is available; None without a limit


def fit(
    files: Paths | TokenStore = None,
    out: Path | str | None = None,
    *,
    minutes: float | None = None,
    resume: bool = False,
    texts: Strings = None,
    train: Paths = None,
    valid: Paths = None,
    test: Paths = None,
    train_lines: Strings = None,
    valid_lines: Strings = None,
    test_lines: Strings = None,
    column: str | None = None,
    blank_lines: Literal["skip", "keep"] = "skip",
    boundary: Boundary | None = None,
    lowercase: bool | None = None,
    tokenizer: Path | str | None = None,
    normalize: Literal["none", "ccnet"] = "none",
    min_count: int | None = None,
    vocabulary_size: int | None = None,
    valid_sentences: int | None = None,
    test_sentences: int | None = None,
    seed: int = 0,
    punkt: Literal["english", "train"] | None = None,
    encoding: str = "utf-8",
    gutenberg: bool = False,
    skip_broken: bool = False,
    workers: int | None = None,
    threads: int | None = None,
    progress: bool | Callable[[Stage], None] | None = True,
) -> LanguageModel:
    """Write the best model of a text, for the time that is available, to the folder `out`, and return it.

    The model is a mixture of a log-bilinear model and a 5-gram model. The stages are: prepare the text, estimate the
    n-gram model, train the neural model, learn the weights on validation text, evaluate all models on test text, and
    write report.html. `out` contains everything; it can be moved and loaded with `ncelm.load`.

    Args:
        files: files, folders or tar archives of prose; or a token store.
        out: the folder to make. It must not exist, unless `resume` is set.
        minutes: time for all stages, without compilation. None for as long as the model improves much. If a large text
            does not fit in, a part of it is used.
        resume: continue after the stages that are finished, and training from its last checkpoint; or start if `out`
            does not exist. Arguments that are left out are those of the first call. The text can be left out when it is
            prepared.
        lowercase: convert words to lower case. By default prose is converted, tokenized text and text for a `tokenizer`
            are not.
        min_count: words with fewer occurrences in the training text become `<unk>`. By default 2 to 10, the more the
            larger the text, or 1 if the text has words `<unk>`.
        valid_sentences: the number of random sentences of the training text that are moved to the validation split.
            By default 5 % but at most 500, if there is no validation text.
        test_sentences: the same for the test split.
        seed: of the choice of these sentences, and of training.
        punkt: "english" for NLTK's sentence model, "train" for a model trained on the text. By default the first if it
            is installed.
        threads: number of threads; all cores by default.
        progress: True for lines and bars, False for none (see `ncelm.progress`), or a function that is called with a
            `Stage` when a stage begins.

    The other arguments are those of `ncelm.prepare`.

    >>> import tempfile, ncelm
    >>> folder = tempfile.TemporaryDirectory()
    >>> lines = [f"the {animal} sees the {other}" for animal in ("cat", "dog") for other in ("bird", "fish")] * 50
    >>> lm = ncelm.fit(train_lines=lines, out=f"{folder.name}/model", progress=False)
    >>> [word for word, _ in lm.next_words("the cat", 1)]
    ['sees']
    >>> folder.cleanup()
    """
    path = check_path("out", out)
    if minutes is not None:
        _check_minutes(minutes)
    check_bool("resume", resume)
    if lowercase is not None:
        check_bool("lowercase", lowercase)
    check_int("seed", seed, 0)
    check_threads(threads)
    if workers is not None:
        check_int("workers", workers, 1, MAX_WORKERS)
    check_progress(progress)
    if started_by_torchrun():
        raise NcelmError("`fit` runs in one process: start it without torchrun, or use `prepare` and `train`")
    text: dict[str, Any] = {
        "files": files, "texts": texts, "train": train, "valid": valid, "test": test, "train_lines": train_lines,
        "valid_lines": valid_lines, "test_lines": test_lines, "column": column, "blank_lines": blank_lines,
        "boundary": boundary, "lowercase": lowercase, "min_count": min_count, "vocabulary_size": vocabulary_size,
        "tokenizer": None if tokenizer is None else str(check_path("tokenizer", tokenizer)), "normalize": normalize,
        "valid_sentences": valid_sentences, "test_sentences": test_sentences, "seed": seed, "punkt": punkt,
        "encoding": encoding, "gutenberg": gutenberg, "skip_broken": skip_broken,
    }  # fmt: skip
    options = _options({"minutes": minutes, **text})
    created = not (resume and path.exists())
    if created:
        _check_text(files, text)
        _create(path, State(options))
    busy = f"another process is working on {path}: wait for it, or choose another `out`"
    with _interrupted(path), exclusive_lock(path / LOCK, busy), _removed_on_error(path, created):
        state = State.read(path)
        if not created:
            _check_options(path, state.options, options)
            minutes, text = state.options.get("minutes"), _with_former(text, state.options, options)
        total = None if minutes is None else 60.0 * _check_minutes(minutes)
        return _Fit(path, state, total, text, workers, threads, progress).run()


# -- arguments -------------------------------------------------------------------------------------------------------


def _check_minutes(minutes: object) -> float:
    return check_float("minutes", minutes, 0, 1e6, positive=True)


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that were given, as JSON values."""
    given = {name: value for name, value in arguments.items() if value is not None and name not in DEFAULTS}
    given |= {name: arguments[name] for name, default in DEFAULTS.items() if _differs(arguments[name], default)}
    for name in given:
        if name in IN_MEMORY:
            given[name] = "in memory"
        elif name in TEXTS:
            given[name] = _names(given[name])
        elif not isinstance(given[name], str | bool):
            given[name] = _plain(given[name])
    return given


def _differs(value: Any, default: Any) -> bool:
    return type(value) is not type(default) or value != default


def _names(value: Any) -> list[str]:
    """Return the names of the files of an argument that is a store, a path or several paths."""
    if isinstance(value, TokenStore):
        return [str(value.path)]
    return [str(each) for each in (value if isinstance(value, Sequence) and not isinstance(value, str) else [value])]


def _plain(value: Any) -> Any:
    """Return a number as JSON has it. Of a value of another type, which is rejected later, return its name."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if is_finite_number(value) else shown_value(value)


def _check_text(files: Any, text: dict[str, Any]) -> None:
    """Raise an error unless a token store is the only argument that describes the text."""
    if _store_path(files) is None:
        return
    for name, value in text.items():
        if name not in ("files", "seed") and (value != DEFAULTS[name] if name in DEFAULTS else value is not None):
            raise NcelmError(f"`{name}` is for text, and {_store_path(files)} is a token store: leave `{name}` out")


def _store_path(files: Any) -> Path | None:
    """Return the path of a token store if an argument `files` is one."""
    if isinstance(files, TokenStore):
        return files.path
    if isinstance(files, Sequence) and not isinstance(files, str) and len(files) == 1:
        (files,) = files
    with suppress(TypeError, ValueError, OSError):
        return Path(files) if (Path(files) / "store.json").is_file() else None
    return None


def _check_options(out: Path, former: dict[str, Any], options: dict[str, Any]) -> None:
    """Raise an error if an argument is another one than that of the call that is resumed."""
    for name, value in options.items():
        if value != former.get(name):
            was = f"with {former[name]}" if name in former else "without it"
            raise NcelmError(
                f"`{name}` is {value}, but {out} was started {was}: leave `{name}` out, or choose another `out`"
            )


def _with_former(text: dict[str, Any], former: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments about the text; those that were not given are those of the call that is resumed."""
    recorded = {name: value for name, value in former.items() if name in text and name not in (*options, *IN_MEMORY)}
    return text | recorded


# -- the folder ------------------------------------------------------------------------------------------------------


def _create(out: Path, state: State) -> None:
    if (out / run.FIT).exists():
        raise NcelmError(f"{out} exists already: continue with `resume`, or choose another `out`")
    with atomic_folder(out) as folder:
        state.write(folder)


@contextmanager
def _removed_on_error(out: Path, created: bool) -> Iterator[None]:
    """Remove a new folder if an error occurs before the text is prepared."""
    try:
        yield
    except BaseException:
        if created and not (out / STORE).exists():
            shutil.rmtree(out, ignore_errors=True)
        raise


@contextmanager
def _interrupted(out: Path) -> Iterator[None]:
    """Add to the message of an interruption how to continue."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not (out / STORE).exists():
            raise
        name = "SIGTERM" if isinstance(error, Terminated) else "Ctrl-C"
        message = f"stopped by {name}; finished stages are in {out}: continue with `resume`"
        raise type(error)(message) from error


# -- stages ----------------------------------------------------------------------------------------------------------


class _Fit:
    """One call of `fit`."""

    def __init__(
        self,
        out: Path,
        state: State,
        total: float | None,
        text: dict[str, Any],
        workers: int | None,
        threads: int | None,
        progress: bool | Callable[[Stage], None] | None,
    ) -> None:
        self.out, self.state, self.total, self.text = out, state, total, text
        self.workers, self.threads, self.progress = workers, threads, progress
        self.bars = progress is True
        self.began = 0.0  # the current stage, on the monotonic clock
        self._store: TokenStore | None = None

    def run(self) -> LanguageModel:
        """Run the stages that are not finished, and return the model."""
        compiled = False
        for number, stage in enumerate(STAGES, 1):
            if self.state.is_finished(stage):
                continue
            if stage != "prepare" and not compiled:
                self._compile()
                compiled = True
            self._announce(Stage(stage, number, len(STAGES), self._left()))
            self.began, finished = time.monotonic(), False
            try:
                getattr(self, f"_{stage}")()
                finished = True
            finally:
                self.state.add(stage, time.monotonic() - self.began, finished)
                if finished or (self.out / STORE).exists():
                    self.state.write(self.out)
        return LanguageModel.load(self.out, self.threads)

    @property
    def store(self) -> TokenStore:
        """The prepared text."""
        if self._store is None:
            self._store = TokenStore.open(self.out / STORE)
        return self._store

    def _left(self) -> float | None:
        return None if self.total is None else max(self.total - self.state.seconds, 0.0)

    def _used(self) -> float:
        """Return the time of all stages until now."""
        return self.state.seconds + time.monotonic() - self.began

    def _announce(self, stage: Stage) -> None:
        if callable(self.progress):
            self.progress(stage)
        left = "" if stage.seconds_left is None else f", {_clock(stage.seconds_left)} left"
        self._print(f"[{stage.number}/{stage.stages}] {TITLES[stage.name]}{left}")

    def _print(self, line: str) -> None:
        if self.bars:
            with suppress(OSError):  # a full disk behind a log must not stop the work
                print(f"ncelm: {line}", file=sys.stderr, flush=True)

    def _explain(self, topic: str, line: str) -> None:
        """Record a choice or a result and print it."""
        self.state.explanation[topic] = line
        self._print(f"{topic}: {line}")

    def _compile(self) -> None:
        """Compile all kernels, or load them from the cache. The time does not count."""
        began, folder = time.monotonic(), self.out / COMPILED
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        folder.mkdir()
        try:
            compile_for(self.store, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.state.compile_seconds += time.monotonic() - began

    def _prepare(self) -> None:
        if not (self.out / STORE).exists():
            if (path := _store_path(self.text["files"])) is not None:
                _copy_store(path, self.out / STORE)
            else:
                self._prepare_text()
        held_out = "give more text, `valid` text or `valid_sentences`"
        if "valid" not in self.store.splits:
            shutil.rmtree(self.out / STORE)
            raise NcelmError(f"there is no validation text, and too little text to take it from: {held_out}")
        self._explain("text", _describe_text(self.store, read_settings(self.out / STORE)))

    def _prepare_text(self) -> None:
        options = dict(self.text)
        prose = options["files"] is not None or options["texts"] is not None
        if options["lowercase"] is None:
            options["lowercase"] = prose and options["tokenizer"] is None and options["normalize"] == "none"
        if options["min_count"] is None:
            options["min_count"] = "auto"
        if options["punkt"] is None:
            options["punkt"] = "english" if prose and _english_is_installed() else "train"
        for split in ("valid", "test"):
            given = any(options[name] is not None for name in (split, f"{split}_lines", f"{split}_sentences"))
            if not given:
                options[f"{split}_sentences"] = "auto"
        options |= {"workers": self.workers, "seconds": budget.prepare_seconds(self.total), "progress": self.bars}
        self._store = prepare(out=self.out / STORE, **options)

    def _ngram(self) -> None:
        words = self.store.split("train").tokens
        used = budget.ngram_words(self.total, words, total_memory())
        store = self.store if used == words else replace(self.store, splits={"train": _part_of(self.store, used)})
        order = _order(store)
        if not (self.out / NGRAM).exists():
            train_ngram(store, self.out / NGRAM, order, progress=self.bars)
        part = "" if used == words else f" of {used:,} of the {words:,} words, because of time or memory"
        self._explain("n-gram model", f"order {order}, modified Kneser–Ney smoothing{part}")

    def _train(self) -> None:
        minutes = None
        if self.total is not None:
            seconds = budget.training_seconds(self.total, self._used(), self._estimated_word_seconds(), self._held_out)
            minutes = round(seconds / 60, 3)
        seed = {"seed": self.text["seed"]} if self.text["seed"] else {}
        choice = configure(self.store, self.out / NEURAL, minutes=minutes, threads=self.threads, resume=True, **seed)
        if choice.explanation:
            self._explain("neural model", choice.explanation)
            self.state.write(self.out)
        progress = self.bars
        train(self.store, self.out / NEURAL, choice.config, resume=True, threads=self.threads, progress=progress)

    @property
    def _held_out(self) -> HeldOut:
        splits = self.store.splits
        return HeldOut(splits["valid"].tokens, splits["test"].tokens if "test" in splits else 0)

    def _estimated_word_seconds(self) -> float:
        """Return the time of exact scoring of a word before there is a model."""
        vocabulary_size = len(self.store.vocabulary)
        config = default_config(self.store.split("train").tokens, vocabulary_size)
        threads = self.threads or available_cores()
        return budget.SECONDS_PER_COST * score_cost(config, vocabulary_size) / threads

    def _mix(self) -> None:
        models = self._components()
        words = budget.scored_words(self.total, self._used(), self._word_seconds(models), self._held_out)
        logs = self._score(models, "valid", words.valid)
        weights = mixture.learn_weights(logs)
        origin = description.read_origin(self.out / NEURAL, run.read_config(self.out / NEURAL))
        write_mixture(self.out, [self.out / name for name in COMPONENTS], origin, weights, "valid")
        self.state.result = {
            "weights": dict(zip(COMPONENTS, weights.tolist(), strict=True)),
            "perplexity": {"valid": _perplexities(logs, weights)},
            "scored_words": {"valid": words.valid, "test": words.test},
        }
        parts = " + ".join(f"{weight:.3f} {name}" for name, weight in self.state.result["weights"].items())
        on = _part_words(words.valid, self._held_out.valid)
        self._explain("mixture", f"{parts}, learned on {on} of the validation text")
        found = self.state.result["perplexity"]["valid"]
        best = min(COMPONENTS, key=found.__getitem__)
        if found["mixture"] > found[best] * 0.999:
            self._explain("note", f"the mixture is not better than {best} alone on the validation text")

    def _evaluate(self) -> None:
        result, split = self.state.result, "valid"
        weights = np.array([result["weights"][name] for name in COMPONENTS])
        if "test" in self.store.splits:
            split, words = "test", int(result["scored_words"]["test"])
            logs = self._score(self._components(), "test", words)
            result["perplexity"]["test"] = _perplexities(logs, weights)
        found = result["perplexity"][split]
        result["gain_percent"] = 100.0 * (1.0 - found["mixture"] / min(found[name] for name in COMPONENTS))
        self._explain("result", describe_result(result, self._held_out))

    def _report(self) -> None:
        self.state.write(self.out)  # what the report shows
        write_report(self.out, threads=self.threads)

    def _components(self) -> list[LanguageModel]:
        return [LanguageModel.load(self.out / name, self.threads) for name in COMPONENTS]

    def _score(self, models: list[LanguageModel], split: str, words: int) -> np.ndarray:
        with shown(self.bars, desc="scoring", unit=" words", unit_scale=True) as report:
            return score_split(models, self.store, split, words, self.threads, report)

    def _word_seconds(self, models: list[LanguageModel]) -> float:
        """Return the measured time of scoring a word of validation text with all models."""
        if self.total is None:
            return 0.0
        words = min(MEASURED_WORDS, self._held_out.valid)
        score_split(models, self.store, "valid", min(words, 10), self.threads)  # reads parameters into the caches
        began = time.perf_counter()
        score_split(models, self.store, "valid", words, self.threads)
        return (time.perf_counter() - began) / words


# -- parts of stages -------------------------------------------------------------------------------------------------


def _english_is_installed() -> bool:
    try:
        SentenceSplitter.english()
    except NcelmError:
        return False
    return True


def _copy_store(path: Path, out: Path) -> None:
    """Copy the files of a token store, which is validated."""
    store = TokenStore.open(path)
    names = ["store.json", "vocab.txt", "punkt.json", REPORT, *FILES.values()]
    names += [f"{split}.{suffix}" for split in SPLITS if split in store.splits for suffix in ("ids", "sentences")]
    with atomic_folder(out) as folder:
        for name in names:
            if (path / name).is_file():
                shutil.copyfile(path / name, folder / name)


def _part_of(store: TokenStore, words: int) -> Split:
    """Return about `words` words of the training split: blocks of whole sentences that are evenly spaced."""
    split = store.split("train")
    n, share = split.n_sentences, words / split.tokens
    bounds = np.linspace(0, n, BLOCKS + 1).astype(np.int64)
    chosen = [(first, first + max(int((last - first) * share), 1)) for first, last in pairwise(bounds) if last > first]
    ids = np.concatenate([split.ids[split.sentences[first] : split.sentences[last]] for first, last in chosen])
    lengths = np.concatenate([np.diff(split.sentences[first : last + 1]) for first, last in chosen])
    sentences = np.concatenate(([0], np.cumsum(lengths))).astype(np.uint64)
    unknown = int(np.count_nonzero(ids == store.vocabulary.unknown_id))
    return Split("train", ids, sentences, unknown)


def _order(store: TokenStore) -> int:
    """Return the order of the n-gram model: `ORDER`, or less if all sentences are shorter."""
    split = store.split("train")
    longest = int(np.diff(split.sentences).max()) if store.boundary == "sentence" else split.tokens
    return min(ORDER, longest + 1)  # <s> is in front


def _perplexities(logs: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Return the perplexity of each component and of the mixture, of log P_i(w|h), (components, n)."""
    found = {name: mixture.perplexity(each) for name, each in zip(COMPONENTS, logs, strict=True)}
    return {**found, "mixture": mixture.perplexity(mixture.interpolate(logs, weights))}


def _describe_text(store: TokenStore, settings: dict[str, Any]) -> str:
    """Return one line about a prepared text, and what was chosen."""
    names = {"train": "for training", "valid": "for validation", "test": "for testing"}
    sizes = ", ".join(f"{split.tokens:,} {names[name]}" for name, split in store.splits.items())
    unit = "pieces" if store.text.pieces else "words"
    parts = [f"{unit}: {sizes}", f"vocabulary of {len(store.vocabulary):,}"]
    used: Any = settings.get("bytes_used")
    all_bytes: Any = settings.get("bytes")
    least: Any = settings.get("min_count")
    if is_finite_number(used) and is_finite_number(all_bytes) and used < all_bytes:
        parts.insert(0, f"{100 * used / all_bytes:.0f} % of the text, because of the time")
    if isinstance(least, int) and least > 1:
        parts[-1] += f" (words that occur less than {least} times are <unk>)"
    if store.text.lowercase:
        parts.append("lower case, so that a word has one form")
    if store.punkt:
        parts.append("sentences by " + ("NLTK's English model" if store.punkt == "english" else "Punkt, trained on it"))
    return "; ".join(parts)


def _part_words(words: int, all_words: int) -> str:
    """Return a number of words for people: that of a sample, or of a whole text."""
    return f"{words:,} words" if words == all_words else f"a sample of {words:,} of {all_words:,} words"


def describe_result(result: dict[str, Any], held_out: HeldOut | None = None) -> str:
    """Return one line about the perplexities of a model of `fit`."""
    split = "test" if "test" in result["perplexity"] else "valid"
    found = result["perplexity"][split]
    values = ", ".join(f"{name} {found[name]:,.1f}" for name in (*COMPONENTS, "mixture"))
    name = "test" if split == "test" else "validation"
    words = f" on {_part_words(int(result['scored_words'][split]), getattr(held_out, split))}" if held_out else ""
    percent = result["gain_percent"]
    gain = f"{percent:.1f} % lower than" if percent >= 0.05 else "no better than"
    gain = f"the mixture is {gain} its best component"
    return f"{name} perplexity{words}: {values}; {gain}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"

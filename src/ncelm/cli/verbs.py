"""The verbs of the command line that make models of text and ask them: words in, a call, words out."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from ncelm.cli.ui import (
    Json,
    Run,
    Shard,
    Store,
    Threads,
    VectorRun,
    count,
    metrics,
    on_terminal,
    parse_shard,
    print_json,
    progress_bar,
    show,
    show_training,
    warn,
)
from ncelm.distributed.collective import rank
from ncelm.errors import NcelmError
from ncelm.language_model import LanguageModel, SentenceScore, WordScore, load_scorer
from ncelm.models.description import open_store
from ncelm.models.export import VectorFormat, export_vectors
from ncelm.text.readers import read_line_blocks, read_lines, shard_range
from ncelm.training.config import TrainConfig
from ncelm.training.loop import train
from ncelm.training.recipes import RECIPES

Table = Annotated[
    Literal["context", "target"],
    arg(help="Vectors of words as context (r_w) or as predicted words (q_w)."),
]
_RECIPES_HELP = "Where the defaults come from. " + " ".join(
    f"{name}: {(make.__doc__ or '').splitlines()[0]}" for name, make in RECIPES.items()
)


@dataclass(frozen=True)
class Prepare:
    """Turn text into a token store, which `ncelm train` reads.

    Either text that is ready (one sentence a line, blanks between words):

        ncelm prepare --train F --valid F --test F --out STORE

    or raw prose, files or folders, which is split into sentences (Punkt) and words (Treebank rules):

        ncelm prepare TEXT… --out STORE --lowercase --min-count 5 --punkt train

    Files may be packed (.gz) or in tar archives (.tar, .tar.gz, .tar.xz, .tar.bz2); of a folder, all files below it are
    read but hidden ones. Works of Project Gutenberg lose their headers and footers with --gutenberg.
    """

    texts: Annotated[
        tuple[Path, ...], Positional, arg(metavar="TEXT…", help="Files, folders or tar archives of raw prose.")
    ] = ()
    out: Annotated[Path, arg(help="The store: a folder that does not exist yet.")] = field(kw_only=True)
    train: Annotated[tuple[Path, ...], arg(help="Training text, one sentence a line.")] = ()
    valid: Annotated[tuple[Path, ...], arg(help="Validation text, one sentence a line.")] = ()
    test: Annotated[tuple[Path, ...], arg(help="Test text, one sentence a line.")] = ()
    boundary: Annotated[
        Literal["stream", "sentence"] | None,
        arg(help="Contexts run on across sentence ends (stream: the Penn Treebank habit, default with --train) or end "
            "with the sentence (sentence: default for prose)."),
    ] = None  # fmt: skip
    lowercase: Annotated[bool, arg(help="Turn all words to lower case.")] = False
    min_count: Annotated[int, arg(help="Words seen less often in training become <unk>.")] = 1
    vocabulary_size: Annotated[
        int | None,
        arg(help="Keep only the most frequent words, so many with <unk> and </s>; all by default."),
    ] = None
    valid_sentences: Annotated[
        int | None,
        arg(help="Set so many random sentences aside for validation (prose: 5 %, at most 500, by default)."),
    ] = None
    test_sentences: Annotated[int | None, arg(help="The same for testing.")] = None
    seed: Annotated[int, arg(help="Decides which sentences are set aside.")] = 0
    punkt: Annotated[
        Literal["english", "train"],
        arg(
            help="How to find sentences: by NLTK's English model, which must be installed, or one trained on this text."
        ),
    ] = "english"
    encoding: Annotated[str, arg(help="Of the text files.")] = "utf-8"
    gutenberg: Annotated[
        bool,
        arg(help="The texts are works of Project Gutenberg: take headers and footers off. STORE/works.tsv tells, work "
            "by work, what was taken off. Works that are not in --encoding are read as latin-1."),
    ] = False  # fmt: skip
    skip_broken: Annotated[
        bool, arg(help="With --gutenberg: leave works out that are empty or binary, instead of stopping.")
    ] = False
    shard: Annotated[
        str | None,
        arg(metavar="I/N", help="Only tokenise the I-th of N parts of the text, for a scheduler that runs all of them "
            "on machines that see the same files; then run the same command with --join N."),
    ] = None  # fmt: skip
    join: Annotated[int | None, arg(metavar="N", help="Make the store of the N parts that --shard has made.")] = None
    workers: Annotated[int | None, arg(help="Processes to use; all cores by default.")] = None
    json: Json = False

    def run(self) -> None:
        """Prepare and say what came of it."""
        from ncelm.text.archives import REPORT, summary
        from ncelm.text.prepare import prepare, prepare_part

        if self.shard and self.join is not None:
            raise NcelmError("give --shard for a part of the work, or --join when all parts are done, not both")
        with progress_bar(unit="B", unit_scale=True, desc="reading") as bar:
            which: dict[str, Any] = {
                "texts": self.texts or None,
                "out": self.out,
                "train": self.train or None,
                "valid": self.valid or None,
                "test": self.test or None,
                "boundary": self.boundary,
                "lowercase": self.lowercase,
                "punkt": self.punkt,
                "encoding": self.encoding,
                "gutenberg": self.gutenberg,
                "skip_broken": self.skip_broken,
                "workers": self.workers,
                "progress": show(bar),
            }
            if self.shard:
                part = prepare_part(*parse_shard(self.shard), **which)
                print_json({"part": str(part)}) if self.json else print(f"{part}: part {self.shard} is done")
                return
            store = prepare(
                min_count=self.min_count,
                vocabulary_size=self.vocabulary_size,
                valid_sentences=self.valid_sentences,
                test_sentences=self.test_sentences,
                seed=self.seed,
                parts=self.join,
                **which,
            )
        splits = {
            name: {"tokens": split.tokens, "sentences": split.n_sentences, "unknown": split.unknown}
            for name, split in store.splits.items()
        }
        works = summary(self.out) if self.gutenberg else None
        if self.json:
            answer = {"store": str(self.out), "vocabulary": len(store.vocabulary), "splits": splits}
            print_json(answer | ({"works": works} if works else {}))
            return
        if works:
            print(
                f"{works['works']:,} works, {works['without_header']} without a known header, "
                f"{works['without_footer']} without a known footer, {works['skipped']} skipped: see {self.out / REPORT}"
            )
        if not splits["train"]["unknown"]:
            print(
                "ncelm: no word of the training text is unknown, so a model cannot learn how likely unknown words are: "
                "consider --min-count 2",
                file=sys.stderr,
            )
        print(f"{self.out}: {len(store.vocabulary):,} words in the vocabulary, boundary {store.boundary}")
        for name, counts in splits.items():
            unknown = 100 * counts["unknown"] / counts["tokens"]
            print(
                f"  {name:5} {counts['tokens']:>12,} tokens in {counts['sentences']:,} sentences, "
                f"{unknown:.1f} % unknown"
            )


@dataclass(frozen=True)
class Train:
    """Train a model on a token store.

    The defaults below are those of the recipe; `ncelm train --recipe ptb-nce --help` shows another recipe's. What was
    learned is in RUN/model.safetensors, how it went in RUN/metrics.jsonl. A run that was stopped, by Ctrl-C or by a
    power cut, goes on with --resume, to the same result.
    """

    store: Store
    out: Annotated[Path, arg(help="The run: a folder that does not exist yet; with --resume it may.")]
    recipe: Annotated[str, arg(metavar="NAME", help=_RECIPES_HELP)] = "default"
    config: OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)
    threads: Threads = None
    resume: Annotated[bool, arg(help="Go on from the last checkpoint; start if there is none.")] = False
    checkpoint_minutes: Annotated[
        float, arg(help="Write a checkpoint so often within an epoch, beside the one after each epoch.")
    ] = 5.0
    json: Json = False

    def run(self) -> None:
        """Train, with a progress bar, and say what came of it."""
        from ncelm.text.store import TokenStore

        store = TokenStore.open(self.store)
        tokens, words = store.split("train").tokens, len(store.vocabulary)
        if on_terminal():
            memory = self.config.memory_bytes(words, tokens)
            print(
                f"{tokens:,} tokens, {words:,} words; training takes about {memory / 1e6:,.0f} MB of memory beside the "
                "program",
                file=sys.stderr,
            )
        with progress_bar(unit=" words", unit_scale=True) as bar:
            result = train(
                store,
                self.out,
                self.config,
                threads=self.threads,
                resume=self.resume,
                checkpoint_minutes=self.checkpoint_minutes,
                progress=lambda at: show_training(bar, at),
            )
        if rank() > 0:  # one answer is enough
            return
        if self.json:
            print_json({"run": str(self.out), **result})
            return
        quality = ""
        if "valid_perplexity" in result:
            best = min(line["valid_perplexity"] for line in metrics(self.out))
            quality = f"validation perplexity {best:.2f} (epoch {result['best_epoch']}), "
        print(
            f"{self.out}: {quality}{count(result['epoch'], 'epoch')}, {result['seconds']:.1f} s of training, "
            f"{result['words'] * result['epoch'] / max(result['seconds'], 1e-9):,.0f} words/s"
        )


@dataclass(frozen=True)
class Evaluate:
    """Measure perplexity, exactly normalised, with unknown words and sentence ends counted.

    log Z is the logarithm of the sum of exp(score) over all words: near 0 if the model is self-normalised.
    """

    run_folder: Run
    split: Annotated[str, arg(help="Part of the token store: test, valid or train.")] = "test"
    store: Annotated[Path | None, arg(help="The token store, if it is no longer where it was in training.")] = None
    file: Annotated[
        Path | None,
        arg(help="Measure this text instead, one sentence a line (- for standard input), each by itself."),
    ] = None
    encoding: Annotated[str, arg(help="Of --file.")] = "utf-8"
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Evaluate and print."""
        lm = LanguageModel.load(self.run_folder, self.threads)
        if self.file is not None and (self.store or self.split != "test"):
            raise NcelmError("give either --file or a --split of a --store, not both")
        if self.file is not None:
            result = lm.evaluate(read_lines(self.file, self.encoding))
            what = str(self.file)
        else:
            store = open_store(self.store, lm.store_path, ", or give text by --file")
            result = lm.evaluate_split(store, self.split)
            what = self.split
        if self.json:
            print_json(result.as_dict())
            return
        kind = "perplexity given both sides" if lm.two_sided else "perplexity"
        # n-grams and mixtures are normalised as they are
        log_z = f", log Z {result.log_z_mean:+.3f} ± {result.log_z_std:.3f}" if result.log_z_std else ""
        print(
            f"{what}: {kind} {result.perplexity:.2f} over {result.tokens:,} tokens ({result.sentences:,} sentence ends "
            f"and {result.unknown:,} unknown words among them){log_z}"
        )


@dataclass(frozen=True)
class Score:
    """Print the log-probability of each line: natural logarithm, exactly normalised, the end of the sentence counted.

    Lines are split into words as the training text was. One answer for each line, empty lines too.
    """

    run_folder: Run
    file: Annotated[
        Path, Positional, arg(metavar="FILE", help="Text, one sentence a line; standard input by default.")
    ] = Path("-")
    per_word: Annotated[bool, arg(help="Each word with its log-probability; unknown words are marked.")] = False
    no_end: Annotated[bool, arg(help="Leave the end of the sentence out; it counts as a word, as in KenLM.")] = False
    unnormalised: Annotated[
        bool,
        arg(
            help="Scores as they are, as if they summed to one: far faster, and nearly the same after "
            "training by nce. `ncelm evaluate` tells by how much they miss (log Z)."
        ),
    ] = False
    shard: Shard = None
    encoding: Annotated[str, arg(help="Of the text.")] = "utf-8"
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Score line by line, in bounded memory."""
        lm = LanguageModel.load(self.run_folder, self.threads)
        if lm.two_sided:
            warn(
                "this model sees both sides of a word, so these are sums of log P(word | both sides), not "
                "sentence probabilities"
            )
        start, stop = shard_range(self.file, self.encoding, *parse_shard(self.shard)) if self.shard else (0, None)
        for lines in read_line_blocks(self.file, self.encoding, start=start, stop=stop, keep_blank=True):
            how = (lines, not self.no_end, not self.unnormalised)
            answers = (
                map(self._words, lm.full_scores_of(*how)) if self.per_word else map(self._total, lm.scores_of(*how))
            )
            sys.stdout.write("".join(f"{answer}\n" for answer in answers))
            sys.stdout.flush()  # whoever feeds a pipe line by line may be waiting

    def _total(self, sentence: SentenceScore) -> str:
        return json.dumps(vars(sentence), allow_nan=False) if self.json else f"{sentence.log_probability:.6f}"

    def _words(self, words: list[WordScore]) -> str:
        total = sum(word.log_probability for word in words)
        if self.json:
            unknown = sum(word.unknown for word in words)
            sentence = vars(SentenceScore(total, len(words), unknown))
            return json.dumps(sentence | {"words": [vars(word) for word in words]}, allow_nan=False)
        each = (f"{word.word} {word.log_probability:.4f}{' <unk>' if word.unknown else ''}" for word in words)
        return "\t".join([*each, f"total {total:.6f}"])


@dataclass(frozen=True)
class Neighbors:
    """Show the words whose vectors are nearest to a word's, by the cosine of the angle."""

    run_folder: VectorRun
    words: Annotated[tuple[str, ...], Positional, arg(metavar="WORD…")]
    count: Annotated[int, arg(help="How many to show.")] = 10
    table: Table = "context"
    json: Json = False

    def run(self) -> None:
        """Look up and print."""
        if not self.words:
            raise NcelmError("no word was given: name at least one")
        lm = load_scorer(self.run_folder)
        found = {word: lm.neighbors(word, self.count, self.table) for word in self.words}
        if self.json:
            print_json({word: [{"word": w, "cosine": c} for w, c in nearest] for word, nearest in found.items()})
            return
        for word, nearest in found.items():
            print(f"{word}: " + ", ".join(f"{other} {cosine:.2f}" for other, cosine in nearest))


@dataclass(frozen=True)
class Export:
    """Write the word vectors to a file that other tools read, such as gensim's KeyedVectors."""

    run_folder: VectorRun
    file: Annotated[Path, Positional, arg(metavar="FILE", help="The file to write; it must not exist.")]
    to: Annotated[
        VectorFormat, arg(help="word2vec's text or binary form, or GloVe's (text without the first line).")
    ] = "word2vec"
    table: Table = "context"
    json: Json = False

    def run(self) -> None:
        """Write the file."""
        count, dim = export_vectors(load_scorer(self.run_folder), self.file, self.to, self.table)
        if self.json:
            print_json({"file": str(self.file), "vectors": count, "dim": dim})
        else:
            print(f"{self.file}: {count:,} vectors of {dim} dimensions")

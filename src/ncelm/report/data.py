"""The content of a report, as JSON values: what the files of a run say, and samples of its model.

Files are not trusted: fields that are missing or have another type are left out. Records of metrics may have
`validation_seconds`, the time of validation since the start of the run; the last one may have `evaluation_seconds`, the
time of the evaluation at the end, and `best_valid_perplexity`, its result, if validation was on a sample of the text.

A folder of `ncelm fit` has fit.json. These keys are shown if they are present:

    command          str: the command line
    explanation      list of str: the choices and their reasons
    steps            {step: {"seconds", "compile_seconds", "finished"}}
    seconds, compile_seconds
    result           {"weights": {component: λ}, "perplexity": {split: {component or "mixture": value}},
                      "gain_percent": of the mixture over its best component}

All other keys are shown as a table of names and values.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from ncelm import __version__
from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.io.files import is_finite_number, is_locked, parse_json, read_bytes
from ncelm.io.metrics import Metrics
from ncelm.language_model import LanguageModel, load_scorer
from ncelm.models import description
from ncelm.models.ensemble import Ensemble
from ncelm.models.load import component_folders
from ncelm.models.log_bilinear import Architecture
from ncelm.report import samples
from ncelm.text.store import TokenStore
from ncelm.training.config import UNIONS, TrainConfig
from ncelm.training.migrate import config_from_version_1
from ncelm.training.options import OPTIONS, to_flat

KINDS = {
    "log-bilinear": "log-bilinear model",
    "feed-forward": "feed-forward network",
    "lstm": "LSTM",
    "maximum-entropy": "maximum-entropy model",
    "ngram": "n-gram model",
    "mixture": "mixture",
    "lsa": "LSA model",
    "pmi": "PMI model",
    "ensemble": "ensemble",
}
# fields of fit.json that are not shown in the table of all others
_FIT_KNOWN = (
    "command",
    "explanation",
    "steps",
    "seconds",
    "compile_seconds",
    "result",
    "finished",
    "ncelm",
    "checksum",
    "format",
    "version",
)
MAX_COMPONENTS = 20  # described in one report


def collect(paths: list[Path], store: TokenStore | None, with_samples: bool, threads: int | None) -> dict[str, Any]:
    """Return the content of a report about these runs."""
    return {
        "ncelm": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": [run_data(path, store, with_samples, threads) for path in paths],
    }


def run_data(path: Path, store: TokenStore | None, with_samples: bool, threads: int | None) -> dict[str, Any]:
    """Return what a report says about one run."""
    data = _described(path)
    if with_samples:
        data["samples"], problems = _samples(path, store, threads)
        data["notes"] += problems
    return data


def _described(path: Path, components: bool = True) -> dict[str, Any]:
    """Return what the files of a run say, and of its components."""
    content = run.read_config(path)
    origin = description.read_origin(path, content)
    records = Metrics(path / run.METRICS).read()
    kind = content["kind"]
    data: dict[str, Any] = {
        "name": path.resolve().name,
        "path": str(path),
        "kind": kind,
        "ncelm": str(content.get("ncelm", "")),
        "text": _text(origin),
        "vocabulary_digest": origin.vocabulary.digest,
        "model_bytes": _size(path / run.MODEL),
        "notes": [],
    }
    if kind in get_args(Architecture):
        data |= _trained(path, content, records)
    else:
        data |= _numbers(records[-1], ("seconds", "valid_perplexity")) if records else {}
    if kind == "ngram":
        data["ngram"] = _ngram(content, records)
    elif kind in ("mixture", "ensemble"):
        data |= _combination(path, content, components)
    if (path / run.FIT).is_file():
        data["fit"] = _fit(path / run.FIT)
        data |= _fit_quality(data["fit"])
    data["summary"] = summary(data)
    return data


def _text(origin: description.Origin) -> dict[str, Any]:
    """Return the name of the token store and the sizes of text and vocabulary."""
    return {
        "store": origin.store.name if origin.store else None,
        "training_words": int(origin.vocabulary.counts.sum()),  # 0 if the model was imported
        "vocabulary": len(origin.vocabulary),
        "boundary": origin.boundary,
        "tokenizer": origin.text.tokenizer,
        "lowercase": origin.text.lowercase,
    }


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _numbers(record: dict[str, Any], names: Iterable[str] | None = None) -> dict[str, float]:
    """Return the fields of a record that are numbers, or those of them with these names."""
    return {
        name: record[name]
        for name in (record if names is None else names)
        if is_finite_number(record.get(name)) and not isinstance(record[name], bool)
    }


# -- neural models ---------------------------------------------------------------------------------------------------


def _trained(path: Path, content: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return epochs, quality, time and settings of a run of `train`."""
    epochs = [_numbers(record) for record in records if "diverged" not in record]
    epochs = [record for record in epochs if "epoch" in record]
    finished = bool(records) and ("diverged" in records[-1] or records[-1].get("finished") is True)
    data: dict[str, Any] = {
        "epochs": epochs,
        "finished": finished,
        "settings": _settings(path, content),
        "notes": [],
    }
    if records and isinstance(records[-1].get("diverged"), str):
        where = f"epoch {records[-1].get('epoch')}, step {records[-1].get('step')}"
        data["notes"].append(f"Training diverged in {where}: {records[-1]['diverged']}.")
    elif not records or records[-1].get("finished") is not True:
        running = is_locked(path / run.LOCK)
        data["notes"].append(
            "Training is running." if running else "Training is not finished: continue it with --resume."
        )
    if not epochs:
        return data
    last = epochs[-1]
    best = next((record for record in epochs if record["epoch"] == last.get("best_epoch")), last)
    data |= {"best_epoch": best["epoch"]}
    data |= _numbers(best, ("valid_perplexity", "test_perplexity"))
    data |= {new: best[old] for old, new in (("valid_log_z_mean", "log_z_mean"), ("valid_log_z_std", "log_z_std"))
             if old in best}  # fmt: skip
    if "best_valid_perplexity" in last:  # on more text than after each epoch
        data["valid_perplexity"] = last["best_valid_perplexity"]
    data |= _numbers(last, ("seconds",))
    if any("validation_seconds" in record for record in epochs):
        validation = max(record.get("validation_seconds", 0.0) for record in epochs)
        data["validation_seconds"] = validation + last.get("evaluation_seconds", 0.0)
    if last.get("seconds", 0.0) > 0 and all("words" in record for record in epochs):
        data["words_per_second"] = sum(record["words"] for record in epochs) / last["seconds"]
    return data


def _settings(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the options of a run: those that differ from the defaults first."""
    try:
        read = config_from_version_1 if content["version"] == 1 else TrainConfig.from_dict
        config = read(content.get("config"))
    except NcelmError as error:
        raise run.damaged_config(path) from error
    flat = to_flat(config)
    defaults = to_flat(TrainConfig().with_changes(**{slot: flat[slot] for slot in UNIONS if slot in flat}))
    alternatives = to_flat(TrainConfig())
    settings = []
    for name, value in flat.items():
        default = alternatives[name] if name in UNIONS and name in alternatives else defaults.get(name)
        settings.append(
            {
                "name": name,
                "flag": OPTIONS[name].flag,
                "value": value,
                "default": default,
                "changed": value != default,
                "help": OPTIONS[name].help,
            }
        )
    return sorted(settings, key=lambda setting: not setting["changed"])


# -- other models ----------------------------------------------------------------------------------------------------


def _ngram(content: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return for each order the number of n-grams, the least count and the discounts, as far as they are recorded."""
    record = records[-1] if records else {}
    order = content.get("order") if type(content.get("order")) is int else 0
    counts = [n for n in _list(record.get("ngrams")) if is_finite_number(n)]
    least = [n for n in _list(content.get("min_counts")) if is_finite_number(n)]
    discounts = [each for each in _list(record.get("discounts")) if isinstance(each, dict)]
    orders = []
    for n in range(min(max(int(order or 0), len(counts)), 100)):
        entry: dict[str, Any] = {"order": n + 1}
        if n < len(counts):
            entry["ngrams"] = counts[n]
        if least:
            entry["min_count"] = least[min(n, len(least) - 1)]
        if n < len(discounts):
            entry["discounts"] = [d for d in _list(discounts[n].get("amounts")) if is_finite_number(d)]
            entry["fallback"] = discounts[n].get("fallback") is True
        orders.append(entry)
    return {"order": len(orders), "orders": orders, "from_arpa": "arpa_sha256" in content}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _combination(path: Path, content: dict[str, Any], describe: bool) -> dict[str, Any]:
    """Return the components of a mixture or an ensemble, with their weights and what is known about them."""
    notes: list[str] = []
    weights = _list(content.get("weights"))
    data: dict[str, Any] = {"components": [], "weights_from": str(content.get("weights_from", "")), "notes": notes}
    try:
        folders = component_folders(path, content)
    except NcelmError as error:
        notes.append(f"The components cannot be described: {error}.")
        folders = []
    for i, folder in enumerate(folders[:MAX_COMPONENTS]):
        entry: dict[str, Any] = {"name": folder.name, "kind": run.read_config(folder)["kind"]}
        if i < len(weights):
            entry["weight"] = weights[i]
        if describe:
            entry["run"] = _described(folder, components=False)
            entry |= _numbers(entry["run"], ("valid_perplexity",))
        data["components"].append(entry)
    learned = content.get("learned_on")
    if isinstance(learned, dict):
        data["learned_on"] = _numbers(learned, ("questions", "percent"))
        for entry, percent in zip(data["components"], _list(learned.get("parts_percent")), strict=False):
            if is_finite_number(percent):
                entry["percent"] = percent
    return data


def _fit(path: Path) -> dict[str, Any]:
    """Return the content of fit.json that is shown; see above."""
    try:
        content = parse_json(read_bytes(path))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise NcelmError(f"{path} is damaged (not a JSON object): restore it from a copy or remove it")
    fit: dict[str, Any] = {
        "command": str(content["command"]) if "command" in content else None,
        "explanation": [str(line) for line in _list(content.get("explanation"))],
        "steps": {name: _numbers(step) for name, step in _items(content.get("steps")) if isinstance(step, dict)},
        "other": {name: value for name, value in content.items() if name not in _FIT_KNOWN},
        **_numbers(content, ("seconds", "compile_seconds")),
    }
    result = content.get("result")
    if isinstance(result, dict):
        fit |= _numbers(result, ("gain_percent",))
        fit["weights"] = _numbers(dict(_items(result.get("weights"))))
        fit["perplexity"] = {split: _numbers(values) for split, values in _items(result.get("perplexity"))
                             if isinstance(values, dict)}  # fmt: skip
        known = ("gain_percent", "weights", "perplexity")
        fit["other"] |= {f"result.{name}": value for name, value in result.items() if name not in known}
    return fit


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _fit_quality(fit: dict[str, Any]) -> dict[str, float]:
    """Return the perplexities of the mixture and the time of all steps."""
    perplexity = fit.get("perplexity", {})
    found = {f"{split}_perplexity": values["mixture"] for split, values in perplexity.items() if "mixture" in values}
    return {name: value for name, value in found.items() if name in ("valid_perplexity", "test_perplexity")} | (
        {"seconds": fit["seconds"]} if "seconds" in fit else {}
    )


# -- summary ---------------------------------------------------------------------------------------------------------


def summary(data: dict[str, Any]) -> str:
    """Return one or two sentences: which model, of which text, how good, in which time."""
    text = data["text"]
    source = f" ({text['store']})" if text["store"] else ""
    words = f" of {text['training_words']:,} words{source}" if text["training_words"] else ""
    sentences = [f"{model_name(data)}{words}, vocabulary of {text['vocabulary']:,}."]
    quality = [
        f"{name} perplexity {data[key]:,.1f}"
        for key, name in (("valid_perplexity", "validation"), ("test_perplexity", "test"))
        if key in data
    ]
    if "percent" in data.get("learned_on", {}):
        quality.append(f"{data['learned_on']['percent']:.1f} % of generated questions correct")
    if "seconds" in data:
        epochs = len(data.get("epochs", []))
        after = f" ({epochs} epoch{'s' * (epochs != 1)})" if epochs else ""
        quality.append(f"{duration(data['seconds'])} of {'work' if 'fit' in data else 'training'}{after}")
    if quality:
        sentences.append(f"{', '.join(quality)}.")
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def model_name(data: dict[str, Any]) -> str:
    """Return the kind of a model with its size, such as "5-gram model"."""
    kind = data["kind"]
    if kind == "ngram" and data["ngram"]["order"]:
        return f"{data['ngram']['order']}-gram model"
    if kind in ("mixture", "ensemble") and data["components"]:
        return f"{KINDS[kind]} of {len(data['components'])} models"
    flat = {setting["name"]: setting["value"] for setting in data.get("settings", [])}
    if not flat:
        return KINDS[kind]
    parts = [f"{flat['context']} context words"] if kind != "lstm" and flat.get("context") else []
    if flat.get("context_after"):
        parts.append(f"{flat['context_after']} after the word")
    if kind != "maximum-entropy":
        parts.append(f"{flat['dim']} dimensions")
    return f"{KINDS[kind]} ({', '.join(parts)}; loss {flat['loss']})"


def duration(seconds: float) -> str:
    """Return a time for people.

    >>> [duration(s) for s in (0, 0.0371, 7.04, 75, 3600 * 2 + 61)]
    ['0 s', '0.037 s', '7.0 s', '1 min 15 s', '2 h 1 min']
    """
    if seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# -- samples ---------------------------------------------------------------------------------------------------------


def _samples(path: Path, store: TokenStore | None, threads: int | None) -> tuple[dict[str, Any], list[str]]:
    """Return samples of a model, and notes about those that are impossible."""
    found: dict[str, Any] = {}
    try:
        model = load_scorer(path, threads)
    except NcelmError as error:  # such as an architecture that needs PyTorch
        return found, [f"There are no samples, because the model cannot be loaded: {error}."]
    found["neighbors"] = samples.neighbors(model) or _neighbors_of_components(model)
    if not isinstance(model, LanguageModel):
        return found, []
    notes = []
    try:
        held_out = description.open_store(store, model.store_path)
        split = next((name for name in ("test", "valid") if name in held_out.splits), None)
        if split is None:
            notes.append("The token store has no held-out text, so there are no scored sentences.")
        else:
            found |= samples.held_out(model, held_out, split)
    except NcelmError as error:
        notes.append(f"There are no held-out sentences: {error}.")
    found["generated"] = samples.generate(model)
    found["two_sided"] = model.two_sided
    return found, notes


def _neighbors_of_components(model: Any) -> list[dict[str, Any]]:
    """Return the neighbors of the first component of an ensemble that has word vectors."""
    components = model.components if isinstance(model, Ensemble) else ()
    return next((found for each in components if (found := samples.neighbors(each))), [])

"""The page of a report: HTML of the content that `data` collects."""

from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

from ncelm.report.charts import COLORS, Series, legend, line_chart
from ncelm.report.data import duration, model_name
from ncelm.report.markup import Markup, element, join, table, text

MARK = "<!doctype html>\n<!-- ncelm report -->\n"  # by which a report is recognised
LOG_Z_HELP = (
    "log Z is the log-normalizer of the scores, mean ± standard deviation over the validation text. Near 0 ± 0.2 the "
    "model is self-normalised: unnormalised scores are close to log-probabilities and much faster to compute. "
    "Perplexities in this report are normalised exactly in any case."
)
PERPLEXITY_HELP = (
    "Perplexity is exp(−mean log P(word | context)), with natural logarithms; unknown words and sentence ends are "
    "counted. Lower is better. Compare perplexities only between models with the same vocabulary and the same text."
)


def render(data: dict[str, Any]) -> str:
    """Return the page as HTML."""
    runs = data["runs"]
    title = f"{runs[0]['name']}: report" if len(runs) == 1 else f"Comparison of {len(runs)} runs"
    sections = [_comparison(runs), *(_run(each, 2) for each in runs)] if len(runs) > 1 else [_run(runs[0], 1)]
    template = Template(files("ncelm.report").joinpath("template.html").read_text("utf-8"))
    style = files("ncelm.report").joinpath("style.css").read_text("utf-8")
    foot = element("p", f"Written by ncelm {data['ncelm']}, {data['created'][:16].replace('T', ' ')} UTC.")
    return MARK + template.substitute(title=text(title), style=style, body=join(sections), foot=foot)


# -- one run ---------------------------------------------------------------------------------------------------------


def _run(data: dict[str, Any], level: int) -> Markup:
    """Return the section of a run. `level` is that of its heading."""
    parts = [
        element("p", data["summary"], class_="summary"),
        *(element("p", note, class_="note", role="note") for note in data["notes"]),
        _cards(data),
        _fit(data, level + 1),
        _components(data, level + 1),
        _curves([data], level + 1),
        _ngram(data, level + 1),
        _samples(data, level + 1),
        *(_component_runs(data, level + 1)),
        _settings(data, level + 1),
        _epochs(data),
        _about(data, level + 1),
    ]
    return element("section", _heading(level, data["name"]), *parts, class_="run")


def _heading(level: int, title: str) -> Markup:
    return element(f"h{min(level, 6)}", title)


def _cards(data: dict[str, Any]) -> Markup:
    """Return the most important figures."""
    cards: list[tuple[str, str, str]] = []
    for key, name in (("test_perplexity", "test perplexity"), ("valid_perplexity", "validation perplexity")):
        if key in data:
            note = f"after epoch {data['best_epoch']:.0f}" if "best_epoch" in data else ""
            cards.append((f"{data[key]:,.1f}", name, note))
    if "log_z_mean" in data and "log_z_std" in data:
        cards.append((f"{_minus(data['log_z_mean'], '+.2f')} ± {data['log_z_std']:.2f}", "log Z", "0: self-normalised"))
    fit = data.get("fit", {})
    if "gain_percent" in fit:
        cards.append((f"{fit['gain_percent']:.1f} %", "gain of the mixture", "over its best component"))
    if "seconds" in data:
        validation = f"and {duration(data['validation_seconds'])} of validation" if "validation_seconds" in data else ""
        compilation = f"and {duration(fit['compile_seconds'])} of compilation" if "compile_seconds" in fit else ""
        cards.append((duration(data["seconds"]), "in total" if fit else "training time", validation or compilation))
    if "words_per_second" in data:
        cards.append((f"{data['words_per_second']:,.0f}", "words per second", "of training"))
    ngrams = sum(order.get("ngrams", 0) for order in data.get("ngram", {}).get("orders", []))
    if ngrams:
        cards.append((f"{ngrams:,}", "n-grams", f"of order 1 to {data['ngram']['order']}"))
    if data["model_bytes"]:
        cards.append((_bytes(data["model_bytes"]), "model file", ""))
    items = [
        element("div", element("dt", name), element("dd", value, element("small", note) if note else ""))
        for value, name, note in cards
    ]
    return element("dl", *items, class_="cards") if items else Markup("")


def _minus(value: float, form: str = ".1f") -> str:
    """Return a number with a minus sign instead of a hyphen."""
    return f"{value:{form}}".replace("-", "−")


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


# -- curves ----------------------------------------------------------------------------------------------------------


def _curves(runs: Sequence[dict[str, Any]], level: int) -> Markup:
    """Return the charts of all runs that were trained by epochs, one line per run."""
    trained = [(i, data) for i, data in enumerate(runs) if len(data.get("epochs", [])) > 0]
    charts = []
    for title, x, x_label, y, y_label in (
        ("Validation perplexity by epoch", "epoch", "epoch", "valid_perplexity", "perplexity"),
        ("Validation perplexity by training time", "seconds", "seconds", "valid_perplexity", "perplexity"),
        ("Training loss by epoch", "epoch", "epoch", "loss", "loss"),
        ("Throughput by epoch", "epoch", "epoch", "words_per_second", "words/s"),
        ("Learning rate by epoch", "epoch", "epoch", "learning_rate", "learning rate"),
        ("log Z by epoch", "epoch", "epoch", "valid_log_z_mean", "mean log Z"),
    ):
        series = [_series(data, x, y, i) for i, data in trained]
        if y in ("learning_rate", "valid_log_z_mean") and not _varies(series):
            continue
        if chart := line_chart(title, x_label, y_label, series, x == "epoch", y == "words_per_second"):
            charts.append(chart)
    if not charts:
        return Markup("")
    names = legend([_series(data, "epoch", "loss", i) for i, data in trained]) if len(runs) > 1 else ""
    explained = element("p", "A ring marks the epoch with the lowest validation perplexity.", class_="help")
    return element("section", _heading(level, "Training"), explained, names, element("div", *charts, class_="charts"))


def _series(data: dict[str, Any], x: str, y: str, color: int) -> Series:
    points = [(float(record[x]), float(record[y])) for record in data["epochs"] if x in record and y in record]
    best = next((record.get(x) for record in data["epochs"] if record["epoch"] == data.get("best_epoch")), None)
    return Series(data["name"], points, color % COLORS, best if y == "valid_perplexity" else None)


def _varies(series: Sequence[Series]) -> bool:
    return any(len({y for _, y in each.points}) > 1 for each in series)


def _epochs(data: dict[str, Any]) -> Markup:
    """Return a table of all epochs: the charts as numbers."""
    records = data.get("epochs", [])
    columns = [
        ("epoch", "epoch", "{:.0f}"),
        ("loss", "loss", "{:.4f}"),
        ("valid_perplexity", "validation perplexity", "{:,.2f}"),
        ("test_perplexity", "test perplexity", "{:,.2f}"),
        ("valid_log_z_mean", "log Z, mean", "{:+.3f}"),
        ("valid_log_z_std", "log Z, std", "{:.3f}"),
        ("learning_rate", "learning rate", "{:g}"),
        ("seconds", "seconds", "{:,.1f}"),
        ("validation_seconds", "seconds of validation", "{:,.1f}"),
        ("words_per_second", "words/s", "{:,.0f}"),
    ]
    used = [column for column in columns if any(column[0] in record for record in records)]
    if not used:
        return Markup("")
    rows: list[list[object]] = [
        [form.format(record[key]).replace("-", "−") if key in record else "–" for key, _, form in used]
        for record in records
    ]
    numbers = frozenset(range(len(used)))
    return _details("All epochs", table([name for _, name, _ in used], rows, "Metrics of each epoch", numbers))


def _details(title: str, *content: Markup) -> Markup:
    return element("details", element("summary", title), *content)


# -- settings --------------------------------------------------------------------------------------------------------


def _settings(data: dict[str, Any], level: int) -> Markup:
    """Return the options: those that differ from the defaults, and all others on request."""
    settings = data.get("settings", [])
    if not settings:
        return Markup("")
    changed = [setting for setting in settings if setting["changed"]]
    others = [setting for setting in settings if not setting["changed"]]
    first = (
        table(
            ["option", "value", "default", "meaning"],
            [[element("code", s["flag"]), _value(s["value"]), _value(s["default"]), s["help"]] for s in changed],
            "Options that differ from the defaults",
        )
        if changed
        else element("p", "All options have their default values.")
    )
    rest = table(
        ["option", "value", "meaning"],
        [[element("code", s["flag"]), _value(s["value"]), s["help"]] for s in others],
        "Options with their default values",
    )
    return element("section", _heading(level, "Settings"), first, _details(f"{len(others)} defaults", rest))


def _value(value: Any) -> Any:
    """Return a value for people."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value == "":
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value


# -- other models ----------------------------------------------------------------------------------------------------


def _ngram(data: dict[str, Any], level: int) -> Markup:
    """Return the orders of an n-gram model with counts and discounts."""
    orders = data.get("ngram", {}).get("orders", [])
    if not orders:
        return Markup("")
    rows: list[list[object]] = []
    for order in orders:
        discounts = [f"{amount:.3f}" for amount in order.get("discounts", [])][:3]
        rows.append(
            [
                f"{order['order']}",
                f"{order['ngrams']:,}" if "ngrams" in order else "–",
                order.get("min_count", "–"),
                *discounts,
                *["–"] * (3 - len(discounts)),
                "too little text: fixed values" if order.get("fallback") else "",
            ]
        )
    header: list[object] = ["order", "n-grams", "least count", "D₁", "D₂", "D₃₊", ""]
    shown = table(header, rows, "n-grams of each order and their discounts", frozenset(range(6)))
    explained = (
        "Modified Kneser–Ney smoothing subtracts a discount from the count of each n-gram: D₁ if it was seen once, D₂ "
        "twice, D₃₊ more often. What is subtracted is the probability of unseen words."
    )
    return element("section", _heading(level, "N-grams"), element("p", explained, class_="help"), shown)


def _components(data: dict[str, Any], level: int) -> Markup:
    """Return the components of a mixture or an ensemble."""
    components = data.get("components", [])
    if not components:
        return Markup("")
    splits = data.get("fit", {}).get("perplexity", {})
    percents = any("percent" in each for each in components)
    measured = list(splits) or (["valid"] if any("valid_perplexity" in each for each in components) else [])
    names = {"valid": "validation perplexity", "test": "test perplexity"}
    header: list[object] = ["component", "model", "weight", *(names.get(split, split) for split in measured)]
    rows: list[list[object]] = []
    for each in components:
        row: list[object] = [each["name"], model_name(each["run"]) if "run" in each else each["kind"]]
        row.append(_weight(each.get("weight")))
        for split in measured:
            found = splits.get(split, {}).get(each["name"], each.get(f"{split}_perplexity"))
            row.append(f"{found:,.1f}" if found is not None else "–")
        rows.append(row + ([f"{each['percent']:.1f} %"] if "percent" in each else ["–"] if percents else []))
    total: list[object] = [data["kind"], "", "", *(_perplexity(data, splits, split) for split in measured)]
    learned = data.get("learned_on", {})
    if percents:
        header.append("questions correct")
        total.append(f"{learned['percent']:.1f} %" if "percent" in learned else "–")
    if any(cell not in ("", "–") for cell in total[3:]):
        rows.append([element("strong", cell) if cell else "" for cell in total])
    explained = {
        "mixture": "The probability of a word is the weighted mean of those of the components. ",
        "ensemble": "The score of a word is the weighted sum of the components' scores, normalised and unnormalised. ",
    }[data["kind"]]
    if data["weights_from"]:
        given = data["weights_from"] == "given"
        explained += (
            "The weights were given." if given else f"Weights were learned on the {data['weights_from']} split."
        )
    shown = table(header, rows, f"Components of the {data['kind']}", frozenset(range(2, len(header))))
    return element("section", _heading(level, "Components"), element("p", explained, class_="help"), shown)


def _weight(weight: Any) -> str:
    """Return the weight of a component of a mixture, or the two weights in an ensemble."""
    values = weight if isinstance(weight, list) else [weight]
    return " / ".join(f"{value:.3f}" for value in values if isinstance(value, int | float)) or "–"


def _perplexity(data: dict[str, Any], splits: dict[str, Any], split: str) -> str:
    value = splits.get(split, {}).get("mixture", data.get(f"{split}_perplexity"))
    return f"{value:,.1f}" if value is not None else "–"


def _component_runs(data: dict[str, Any], level: int) -> list[Markup]:
    """Return curves, n-grams and settings of each component."""
    sections = []
    for each in data.get("components", []):
        if run := each.get("run"):
            parts = [_curves([run], level + 1), _ngram(run, level + 1), _settings(run, level + 1), _epochs(run)]
            if any(parts):
                about = element("p", run["summary"], class_="help")
                sections.append(element("section", _heading(level, f"Component {each['name']}"), about, *parts))
    return sections


def _fit(data: dict[str, Any], level: int) -> Markup:
    """Return the choices and steps of `ncelm fit`."""
    fit = data.get("fit")
    if not fit:
        return Markup("")
    parts: list[Markup] = []
    if fit["command"]:
        parts.append(element("pre", element("code", fit["command"]), tabindex="0"))
    if fit["explanation"]:
        parts.append(element("ul", *(element("li", line.strip()) for line in fit["explanation"])))
    if fit["steps"]:
        rows: list[list[object]] = [
            [name, *(duration(step[key]) if key in step else "–" for key in ("seconds", "compile_seconds"))]
            for name, step in fit["steps"].items()
        ]
        parts.append(table(["step", "time", "compilation"], rows, "Time of each step", frozenset((1, 2))))
    if fit["other"]:
        rows = [[name, _any(value)] for name, value in fit["other"].items()]
        parts.append(_details("Other entries of fit.json", table(["name", "value"], rows, "Other entries of fit.json")))
    return element("section", _heading(level, "How this model was made"), *parts)


def _any(value: Any, depth: int = 0) -> Markup:
    """Return any JSON value, nested ones as lists."""
    if isinstance(value, dict) and value and depth < 4:
        items = (element("li", f"{name}: ", _any(each, depth + 1)) for name, each in value.items())
        return element("ul", *items)
    if isinstance(value, list) and value and depth < 4 and any(isinstance(each, dict | list) for each in value):
        return element("ul", *(element("li", _any(each, depth + 1)) for each in value))
    if isinstance(value, list):
        return text(", ".join(str(_value(each)) for each in value) or "–")
    return text(_value(value))


# -- samples ---------------------------------------------------------------------------------------------------------


def _samples(data: dict[str, Any], level: int) -> Markup:
    """Return samples of the model."""
    samples = data.get("samples") or {}
    parts = [
        _sentences(samples, level + 1),
        _next_words(samples, level + 1),
        _surprising(samples, level + 1),
        _generated(samples, level + 1),
        _neighbors(samples, level + 1),
    ]
    return element("section", _heading(level, "Samples"), *parts) if any(parts) else Markup("")


def _sentences(samples: dict[str, Any], level: int) -> Markup:
    sentences = samples.get("sentences")
    if not sentences:
        return Markup("")
    items = []
    for sentence in sentences:
        words = [
            element("span", element("bdi", each["word"]), class_=f"word level{_level(each['log_probability'])}",
                    title=f"P = {_probability(each['log_probability'])}")
            for each in sentence["words"]
        ]  # fmt: skip
        figures = f"log P = {_minus(sentence['log_probability'])}, perplexity {sentence['perplexity']:,.0f}"
        spaced = join(part for word in words for part in (word, " "))
        items.append(element("li", element("p", spaced, class_="sentence", dir="auto"), element("small", figures)))
    scale = [
        element("span", label, class_=f"word level{i}")
        for i, label in enumerate(("P > 10 %", "> 1 %", "> 0.1 %", "> 0.01 %", "less"))
    ]
    explained = (
        f"Sentences of the {samples['split']} text, each scored by itself. The darker a word, the lower its "
        f"probability given {'the words around it' if samples.get('two_sided') else 'its context'}: "
    )
    return join(
        [
            _heading(level, "Held-out sentences"),
            element("p", explained, join(part for each in scale for part in (each, " ")), class_="help"),
            element("ul", *items, class_="sentences"),
        ]
    )


def _level(log_probability: float) -> int:
    """Return 0 for a probability above 0.1, 1 above 0.01, …, at most 4."""
    return min(max(int(-log_probability / 2.302585093), 0), 4)


def _probability(log_probability: float) -> str:
    exponent = -log_probability / 2.302585093
    return f"10^−{exponent:.1f}" if exponent > 4 else f"{100 * 10**-exponent:.2g} %"


def _next_words(samples: dict[str, Any], level: int) -> Markup:
    examples = samples.get("next_words")
    if not examples:
        return Markup("")
    rows: list[list[object]] = []
    for example in examples:
        words = [
            element("span", element("bdi", each["word"]), element("small", f" {100 * each['probability']:.1f} %"),
                    class_="chip hit" if each["word"] == example["actual"]["word"] else "chip")
            for each in example["words"]
        ]  # fmt: skip
        actual = example["actual"]
        figures = f" {100 * actual['probability']:.2g} %, rank {actual['rank']:,}"
        rows.append(
            [
                element("span", element("bdi", example["context"]), " …", class_="sentence"),
                join(words),
                join([element("bdi", actual["word"]), element("small", figures)]),
            ]
        )
    header: list[object] = ["beginning of a sentence", "most likely next words", "word in the text"]
    return join(
        [_heading(level, "Next words"), table(header, rows, "With probabilities; the word in the text is marked")]
    )


def _surprising(samples: dict[str, Any], level: int) -> Markup:
    words = samples.get("surprising")
    if not words:
        return Markup("")
    rows: list[list[object]] = [
        [
            element("bdi", each["word"]),
            join([element("bdi", each["before"]), " ", element("mark", element("bdi", each["word"])), " ",
                  element("bdi", each["after"])]),
            _minus(each["log_probability"]),
        ]
        for each in words
    ]  # fmt: skip
    caption = f"Words with the lowest probability in {samples['scored_sentences']:,} held-out sentences"
    shown = table(["word", "in the text", "log P"], rows, caption, frozenset((2,)))
    return join([_heading(level, "Most surprising words"), shown])


def _generated(samples: dict[str, Any], level: int) -> Markup:
    sentences = samples.get("generated")
    if not sentences:
        return Markup("")
    items = [element("li", element("p", sentence, class_="sentence", dir="auto")) for sentence in sentences]
    explained = "Each word is drawn from the probabilities of the model, without <unk>. The seed is fixed."
    return join(
        [
            _heading(level, "Generated sentences"),
            element("p", explained, class_="help"),
            element("ul", *items, class_="sentences"),
        ]
    )


def _neighbors(samples: dict[str, Any], level: int) -> Markup:
    found = samples.get("neighbors")
    if not found:
        return Markup("")
    rows: list[list[object]] = [
        [
            element("bdi", each["word"]),
            join(
                element(
                    "span", element("bdi", other["word"]), element("small", f" {other['cosine']:.2f}"), class_="chip"
                )
                for other in each["neighbors"]
            ),
        ]
        for each in found
    ]
    shown = table(["word", "nearest words"], rows, "Nearest word vectors of some frequent words, by cosine similarity")
    return join([_heading(level, "Nearest words"), shown])


# -- text and comparison ---------------------------------------------------------------------------------------------


def _about(data: dict[str, Any], level: int) -> Markup:
    """Return the text of the model, and the meaning of the figures."""
    about = data["text"]
    boundary = {"stream": "contexts extend across sentence ends", "sentence": "contexts end with the sentence"}
    tokenizer = {"treebank": "sentences by Punkt, words by the Treebank rules"}
    rows: list[list[object]] = [
        ["token store", about["store"] or "none: the model was imported"],
        ["training words", f"{about['training_words']:,}" if about["training_words"] else "unknown"],
        ["vocabulary", f"{about['vocabulary']:,} words"],
        ["tokenizer", tokenizer.get(about["tokenizer"], "words are separated by blanks")],
        ["lower case", _value(about["lowercase"])],
        ["boundary", f"{about['boundary']}: {boundary.get(about['boundary'], '')}"],
        ["run", data["path"]],
        ["trained with", f"ncelm {data['ncelm']}"],
    ]
    help_texts = [element("p", PERPLEXITY_HELP, class_="help")]
    if "log_z_mean" in data:
        help_texts.append(element("p", LOG_Z_HELP, class_="help"))
    shown = table(["property", "value"], rows, "Text and vocabulary")
    return element("section", _heading(level, "Text and figures"), shown, *help_texts)


def _comparison(runs: Sequence[dict[str, Any]]) -> Markup:
    """Return a table and the curves of several runs."""
    columns: list[tuple[str, str, str]] = [
        ("valid_perplexity", "validation perplexity", "{:,.2f}"),
        ("test_perplexity", "test perplexity", "{:,.2f}"),
        ("log_z_mean", "log Z", ""),
        ("epochs", "epochs", "{:.0f}"),
        ("words_per_second", "words/s", "{:,.0f}"),
        ("seconds", "time", ""),
    ]
    used = [column for column in columns if any(column[0] in data for data in runs)]
    lowest = {
        key: min(data[key] for data in runs if key in data)
        for key in ("valid_perplexity", "test_perplexity")
        if sum(key in data for data in runs) > 1
    }
    rows: list[list[object]] = []
    for data in runs:
        row: list[object] = [data["name"], model_name(data)]
        for key, _, form in used:
            value = len(data[key]) if key == "epochs" and key in data else data.get(key)
            if value is None:
                cell = "–"
            elif key == "log_z_mean":
                cell = f"{_minus(value, '+.2f')} ± {data.get('log_z_std', 0.0):.2f}"
            else:
                cell = duration(value) if key == "seconds" else form.format(value)
            row.append(element("strong", cell) if value is not None and value == lowest.get(key) else cell)
        rows.append(row)
    parts = [element("h1", f"Comparison of {len(runs)} runs")]
    if len({data["vocabulary_digest"] for data in runs}) > 1:
        note = "These runs have different vocabularies: their perplexities cannot be compared."
        parts.append(element("p", note, class_="note", role="note"))
    header: list[object] = ["run", "model", *(name for _, name, _ in used)]
    parts.append(table(header, rows, "Runs; the lowest perplexity is bold", frozenset(range(2, len(header)))))
    return element("section", *parts, _curves(runs, 2), _differences(runs), class_="run")


def _differences(runs: Sequence[dict[str, Any]]) -> Markup:
    """Return a table of the options in which runs differ."""
    runs = [data for data in runs if data.get("settings")]
    flat = [{s["name"]: s for s in data["settings"]} for data in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    differing = [
        name for name in names if len({str(each[name]["value"]) if name in each else None for each in flat}) > 1
    ]
    if not differing:
        return Markup("")
    rows: list[list[object]] = []
    for name in differing:
        known = next(settings[name] for settings in flat if name in settings)
        values = [_value(settings[name]["value"]) if name in settings else "–" for settings in flat]
        rows.append([element("code", known["flag"]), *values])
    shown = table(["option", *(data["name"] for data in runs)], rows, "Options in which the runs differ")
    return element("section", element("h2", "Differences"), shown)

"""Response times of the page of `ncelm serve`, in Chromium: the first paint, and from a key to coloured words.

    python benchmarks/keystrokes.py RUN [--words 40] [--interval 80] [--report FILE]

Needs Playwright and Chromium. Words of the vocabulary of RUN are typed into the *Write* tab, one key every
`--interval` milliseconds. The time of a key ends when the word that it belongs to has its colour. Browser and service
share the cores.
"""

import json
import random
import shutil
import statistics
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from common import append_history, argument_parser, markdown_table, report_header
from ncelm import load
from ncelm.io.machine import environment_info
from service import serving

WATCH = """() => {
  window.times = [];
  let began = 0;
  const text = document.getElementById("text"), colors = document.getElementById("colors");
  text.addEventListener("keydown", (event) => { began = event.key === " " ? 0 : performance.now(); }, true);
  new MutationObserver(() => {
    const places = colors.lastElementChild?.places;
    if (!began || !places?.length || places.at(-1)[1] !== text.value.length) return;
    window.times.push(performance.now() - began);
    began = 0;
  }).observe(colors, { childList: true, subtree: true });
}"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def words_to_type(run: Path, count: int) -> str:
    """Return frequent words of the vocabulary, at random."""
    vocabulary = [word for word in load(run).vocabulary.words if word.isalpha()]
    return " ".join(random.Random(0).choices(vocabulary[:2000], k=count))


def first_paint(browser: Browser, url: str) -> tuple[float, float]:
    """Return the milliseconds until the first paint, and until the list of models is there."""
    page = browser.new_page()
    page.goto(url)
    page.wait_for_selector("#model option", state="attached")
    times = float(page.evaluate(PAINT)), float(page.evaluate("performance.now()"))
    page.close()
    return times


def keystrokes(browser: Browser, url: str, text: str, interval: float) -> tuple[int, list[float]]:
    """Return the number of letters and the milliseconds from each of them to its colour.

    A letter has no time of its own if the next one comes before its colour.
    """
    page = browser.new_page()
    page.goto(url)
    page.wait_for_selector("#next button")
    page.evaluate(WATCH)
    page.locator("#text").press_sequentially(text, delay=interval, timeout=600_000)
    page.wait_for_timeout(1000)
    times: list[float] = page.evaluate("window.times")
    page.close()
    return sum(letter != " " for letter in text), times


def main() -> None:
    """Measure a run and report."""
    parser = argument_parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--words", type=int, default=40, help="words to type (40)")
    parser.add_argument("--interval", type=float, default=80, metavar="MS", help="milliseconds between keys (80)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page in Markdown")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium")
    result: dict[str, Any] = environment_info("numpy", "numba", "starlette", "uvicorn")
    with serving([options.run]) as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        result["chromium"] = browser.version
        paints = [first_paint(browser, service.url) for _ in range(6)][1:]  # the first starts processes
        letters, times = keystrokes(browser, service.url, words_to_type(options.run, options.words), options.interval)
        browser.close()
    if not times:
        raise SystemExit("no word was coloured")
    ordered = sorted(times)
    result |= {
        "letters": letters,
        "coloured": len(times),
        "first_paint_ms": statistics.median(paint for paint, _ in paints),
        "models_shown_ms": statistics.median(shown for _, shown in paints),
        "median_ms": statistics.median(times),
        "p95_ms": ordered[int(0.95 * len(ordered))],
        "max_ms": ordered[-1],
    }
    figures = {name: float(result[name]) for name in ("first_paint_ms", "median_ms", "p95_ms", "max_ms")}
    append_history(options.history, result, figures)
    if options.report:
        options.report.write_text(page_of(result, options.run, options.interval))
    print(json.dumps(result) if options.json else figures)


def page_of(result: dict[str, Any], run: Path, interval: float) -> str:
    """Return the results in Markdown."""
    lm = load(run)
    about = (
        f"{lm.model}, vocabulary of {len(lm.vocabulary):,}; Chromium {result['chromium']}. {result['letters']} "
        f"letters, one key every {interval:g} ms; {result['coloured']} had their colour before the next key. Browser "
        "and service share the cores."
    )
    rows = [
        ["first paint", f"{result['first_paint_ms']:.0f}"],
        ["list of models shown", f"{result['models_shown_ms']:.0f}"],
        ["key to colour, median", f"{result['median_ms']:.0f}"],
        ["key to colour, 95th percentile", f"{result['p95_ms']:.0f}"],
        ["key to colour, largest", f"{result['max_ms']:.0f}"],
    ]
    lines = [*report_header("Response times of the page", result), about, "", *markdown_table(["", "ms"], rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

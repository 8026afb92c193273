"""The page of `ncelm serve` in Chromium: every tab, as a person uses it. Needs Playwright and Chromium."""

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ncelm

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
REASON = next(
    (
        f"{name} is not installed"
        for name, found in (
            ("playwright", importlib.util.find_spec("playwright")),
            ("starlette (the extra `serve`)", importlib.util.find_spec("starlette")),
            ("uvicorn (the extra `serve`)", importlib.util.find_spec("uvicorn")),
            ("Chromium", CHROMIUM),
        )
        if not found
    ),
    None,
)
pytestmark = [
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=f"tests of the page: {REASON}"),
]
if REASON is None:
    import uvicorn
    from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

    from ncelm.serve.app import Options, create_app
    from ncelm.serve.service import Service

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip
TABS = {
    "write": "Write",
    "gap": "Fill the gap",
    "generate": "Generate",
    "words": "Words",
    "run": "Run",
}
HOSTILE = "<img src=x onerror=\"document.title='executed'\"><script>document.title='executed'</script>"
AXE_FILES = ("node_modules/axe-core/axe.min.js",)  # below the project, or NCELM_AXE


# -- service and browser ---------------------------------------------------------------------------------------------


class Server:
    """The service in a thread."""

    def __init__(self, *runs: Path, token: str | None = None) -> None:
        self.service = Service(runs, threads=2).__enter__()
        self.service.warm_up()
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        app: Any = create_app(self.service, Options(token, access_log=False))
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))
        self.thread = threading.Thread(target=lambda: self.server.run(sockets=[listening]))
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(30)
        self.service.__exit__()


@pytest.fixture(scope="module")
def runs(small_store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("page")
    ncelm.train(small_store, folder / "neural", context=3, dim=16, epochs=2, threads=1)
    ncelm.train_ngram(small_store, folder / "ngram", order=3)
    return {"neural": folder / "neural", "ngram": folder / "ngram"}


@pytest.fixture(scope="module")
def server(runs) -> Iterator[Server]:
    started = Server(runs["neural"], runs["ngram"])
    yield started
    started.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


class Tab:
    """A page, with what went wrong in it."""

    def __init__(self, context: "BrowserContext", url: str) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(10_000)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self._console(message.type, message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = url

    def _console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(text)

    def open(self, fragment: str = "") -> "Page":
        self.page.goto(self.url + fragment)
        expect(self.page.locator("#model option")).not_to_have_count(0)
        return self.page

    def show(self, tab: str) -> None:
        self.page.get_by_role("tab", name=TABS[tab]).click()
        expect(self.page.locator(f"#{tab}")).to_be_visible()

    def refused(self) -> None:
        """Forget the message that Chromium prints for a response with a status of 4xx."""
        assert self.problems
        assert all("Failed to load resource" in problem for problem in self.problems)
        self.problems.clear()


@pytest.fixture
def options() -> dict[str, Any]:
    """Options of the browser; tests override them."""
    return {"viewport": {"width": 1100, "height": 760}}


@pytest.fixture
def tab(browser, server, options) -> Iterator[Tab]:
    context = browser.new_context(**options)
    opened = Tab(context, server.url)
    yield opened
    context.close()
    assert opened.problems == []
    assert [url for url in opened.requests if not url.startswith((server.url, "data:"))] == []


def use_all(tab: Tab) -> Iterator[str]:
    """Use every tab; yield its name when its results are shown."""
    page = tab.open()
    page.locator("#text").fill("Dorothy said to the Scarecrow, zorp.\nThe Tin Woodman")
    expect(page.locator("#next button")).to_have_count(10)
    expect(page.locator("#compare-rows tr")).to_have_count(2)
    yield "write"
    tab.show("gap")
    page.locator("#gap-sentence").fill("the _____ said to her .")
    page.get_by_role("button", name="Find words").click()
    expect(page.locator("#gap-words button")).to_have_count(10)
    yield "gap"
    tab.show("generate")
    page.locator("#prompt").fill("the lion")
    page.get_by_role("button", name="Generate", exact=True).click()
    expect(page.locator("#generate-status")).to_have_text("6 samples, seed 1.")
    yield "generate"
    tab.show("words")
    page.locator("#word").fill("lion")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#neighbors button")).to_have_count(15)
    page.locator("#in-view-details summary").click()
    expect(page.locator("#in-view")).to_contain_text("words, most frequent first")
    yield "words"
    tab.show("run")
    expect(page.locator(".uplot canvas")).to_have_count(6)
    yield "run"


def shown(log_probability: float) -> str:
    """Return log P as the page shows it."""
    size = -log_probability
    return f"−{size:.1f}" if size >= 100 else f"−{size:.2f}" if size >= 10 else f"−{size:.3f}"


# -- the tabs --------------------------------------------------------------------------------------------------------


def test_write(tab, runs):
    page = tab.open()
    lm = ncelm.load(runs["neural"])
    page.locator("#text").press_sequentially("Dorothy said zorpy", delay=5)
    expect(page.locator("#colors span.unknown")).to_have_text("zorpy")
    expect(page.locator("#colors span")).to_have_text(["Dorothy", "said", "zorpy"])
    expect(page.locator("#total-unknown")).to_have_text("1")
    expect(page.locator("#total-words")).to_have_text("4")
    log = lm.score("Dorothy said zorpy")
    expect(page.locator("#total-log")).to_have_text(shown(log))
    perplexity = lm.perplexity("Dorothy said zorpy")
    expect(page.locator("#total-perplexity")).to_have_text(re.compile(rf"^{int(perplexity):,}\b"))
    bits = [-word.log_probability / 0.6931471805599453 for word in lm.full_scores("Dorothy said zorpy")]
    expect(page.locator("#each small")).to_contain_text([f"{value:.1f} bits" for value in bits])

    page.locator("#text").fill("the tin")
    best = lm.next_words("the tin", 10)
    expect(page.locator("#next .name")).to_have_text([w if w != "</s>" else "end of sentence" for w, _ in best])
    word = next(w for w, _ in best if w.isalpha())
    page.locator("#next button").filter(has_text=re.compile(rf"^{word}")).first.click()
    expect(page.locator("#text")).to_have_value(f"the tin {word}")
    expect(page.locator("#next button").first).not_to_have_text(f"{best[0][0]}")
    expect(page.locator("#colors span")).to_have_count(3)


def test_words_of_a_line_are_found_in_its_text(tab):
    page = tab.open()
    page.locator("#text").fill('"I don\'t  know," said Dorothy.\n\nShe was ÉMUE…\tand\u00a0İ left (at 5%).')
    spans = page.locator("#colors span")
    expect(spans.filter(has_text="Dorothy")).to_have_count(1)
    found = spans.all_text_contents()
    assert found[:8] == ['"', "I", "do", "n't", "know", ",", '"', "said"]
    assert found[-4:] == ["5", "%", ")", "."]
    # the coloured words lie exactly under the text area
    text, colors = page.locator("#text").bounding_box(), page.locator("#colors").bounding_box()
    assert text == colors


def test_late_responses_are_ignored(tab):
    page = tab.open()
    page.locator("#text").fill("the")
    expect(page.locator("#colors span")).to_have_text(["the"])

    def delayed(route):
        slow = "slow" in (route.request.post_data or "")
        response = route.fetch()
        if slow:
            page.wait_for_timeout(400)
        route.fulfill(response=response)

    page.route("**/score", delayed)
    page.locator("#text").fill("slow words")
    page.wait_for_timeout(40)
    page.locator("#text").fill("the cat")
    page.wait_for_timeout(700)
    expect(page.locator("#colors span")).to_have_text(["the", "cat"])
    expect(page.locator("#total-words")).to_have_text("3")
    page.unroute_all(behavior="ignoreErrors")


def test_models_are_compared(tab, runs):
    page = tab.open()
    page.locator("#text").fill("the tin woodman")
    expect(page.locator("#compare-rows th")).to_have_text(["neural", "ngram"])
    expected = [shown(ncelm.load(runs[name]).score("the tin woodman")) for name in ("neural", "ngram")]
    expect(page.locator("#compare-rows td:nth-child(2)")).to_have_text(expected)
    page.get_by_label("Model", exact=True).select_option("ngram")
    expect(page.locator("#total-log")).to_have_text(expected[1])
    assert "model=ngram" in page.url
    tab.show("words")
    expect(page.locator("#neighbors-status")).to_have_text("This model has no word vectors.")
    tab.show("run")
    expect(page.locator("#run-tables caption").first).to_have_text("Number of n-grams of each order")
    page.reload()
    expect(page.get_by_label("Model", exact=True)).to_have_value("ngram")
    expect(page.locator("#run")).to_be_visible()


def test_fill_the_gap(tab):
    page = tab.open("#tab=gap")
    field = page.locator("#gap-sentence")
    field.fill("said the  to her")
    field.evaluate("field => field.setSelectionRange(9, 9)")
    page.get_by_role("button", name="Insert a gap").click()
    expect(field).to_have_value("said the _____ to her")
    page.get_by_role("button", name="Find words").click()
    expect(page.locator("#gap-words button")).to_have_count(10)
    expect(page.locator("#gap-parts .name")).to_have_text(["said (−2)", "the (−1)"])
    best = page.locator("#gap-words button").first
    expect(best).to_have_attribute("aria-pressed", "true")
    second = page.locator("#gap-words button").nth(1)
    values = page.locator("#gap-parts .value").all_text_contents()
    second.click()
    expect(second).to_have_attribute("aria-pressed", "true")
    expect(second).to_be_focused()
    expect(page.locator("#gap-parts .value")).not_to_have_text(values)
    page.locator("#gap-choices").fill("lion, zorp,scarecrow")
    page.locator("#gap-choices").press("Enter")
    expect(page.locator("#gap-words button")).to_have_count(3)
    expect(page.locator("#gap-words .name", has_text="zorp")).to_have_text("zorp (unknown word)")
    field.fill("no gap")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("has no gap")


def test_generate(tab, runs):
    page = tab.open("#tab=generate")
    page.get_by_label("Beginning").fill("The lion")
    page.get_by_role("spinbutton", name="Samples").fill("4")
    page.get_by_label("Most words").fill("12")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Top-p").press("ArrowLeft")
    expect(page.locator("#top-p-value")).to_have_text("0.95")
    page.get_by_role("button", name="Generate", exact=True).click()
    expect(page.locator("#generate-status")).to_have_text("4 samples, seed 1.")
    first = page.locator("#samples p").all_text_contents()
    expected = ncelm.load(runs["neural"]).generate(
        "The lion", count=4, max_words=12, seed=1, temperature=0.5, top_p=0.95
    )
    flat = [re.sub(r"[^a-z]", "", text.lower()) for text in first]
    assert flat == [re.sub(r"[^a-z]", "", each.text.lower()) for each in expected]
    page.get_by_role("button", name="Next seed").click()
    expect(page.locator("#generate-status")).to_have_text("4 samples, seed 2.")
    assert page.locator("#samples p").all_text_contents() != first
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()


def view(page: "Page") -> str:
    """Return the image that the map shows."""
    page.wait_for_timeout(80)
    return page.locator("#map").evaluate("map => map.toDataURL()")


def test_words(tab, runs):
    page = tab.open("#tab=words")
    expect(page.locator("#vocabulary option")).not_to_have_count(0)
    canvas = page.locator("#map")
    start = view(page)
    page.get_by_role("button", name="Zoom in").click()
    zoomed = view(page)
    page.get_by_role("button", name="Zoom out").click()
    canvas.hover()
    page.mouse.wheel(0, -300)
    wheeled = view(page)
    canvas.focus()
    canvas.press("ArrowLeft")
    panned = view(page)
    page.mouse.down()
    page.mouse.move(400, 400, steps=3)
    page.mouse.up()
    dragged = view(page)
    canvas.press("0")
    assert view(page) == start
    assert len({start, zoomed, wheeled, panned, dragged}) == 5

    page.get_by_label("Word", exact=True).fill("Lion ")
    page.get_by_label("Word", exact=True).press("Enter")
    neighbors = [word for word, _ in ncelm.load(runs["neural"]).neighbors("lion", 15)]
    expect(page.locator("#neighbors .name")).to_have_text(neighbors)
    expect(page.locator("#neighbors-status")).to_contain_text("lion")
    assert view(page) != start
    page.locator("#neighbors button").first.click()
    expect(page.get_by_label("Word", exact=True)).to_have_value(neighbors[0])
    page.get_by_label("Word", exact=True).fill("zorp")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("alert")).to_contain_text("'zorp' is not in the model's vocabulary")
    tab.refused()


def test_run(tab, runs):
    page = tab.open("#tab=run")
    expect(page.locator("#run-summary")).to_contain_text("Log-bilinear model")
    expect(page.locator("figcaption")).to_have_text(
        ["Validation perplexity", "Training loss", "log Z, mean ± standard deviation", "Histogram of log Z",
         "Learning rate", "Words per second"]
    )  # fmt: skip
    page.locator("figure .u-over").first.hover()
    expect(page.locator(".u-legend").first).to_contain_text(re.compile(r"Epoch:?\s*[12]"))
    expect(page.locator("#run-tables code", has_text="--dim")).to_be_visible()
    page.get_by_text("All epochs", exact=True).click()
    expect(page.get_by_role("region", name="Metrics of each epoch").locator("tbody tr")).to_have_count(2)
    assert str(runs["neural"].parent) not in page.content()


def test_a_run_that_is_not_finished_is_updated(browser, runs, tmp_path):
    run = Path(shutil.copytree(runs["neural"], tmp_path / "live"))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(record | {"finished": False}) + "\n" for record in records]
    (run / "metrics.jsonl").write_text(lines[0])
    server = Server(run)
    context = browser.new_context()
    try:
        tab = Tab(context, server.url)
        page = tab.open("#tab=run")
        expect(page.locator("#run-notes")).to_contain_text("Live")
        expect(page.locator("#run-summary")).to_contain_text("(1 epoch)")
        (run / "metrics.jsonl").write_text(lines[0] + json.dumps(records[1] | {"finished": True}) + "\n")
        expect(page.locator("#run-summary")).to_contain_text("(2 epochs)")
        expect(page.locator("#run-notes")).to_be_empty()
        asked = [url for url in tab.requests if url.endswith("/run")]
        page.wait_for_timeout(2300)
        assert [url for url in tab.requests if url.endswith("/run")] == asked
        assert tab.problems == []
    finally:
        context.close()
        server.stop()


def epochs_of(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120  # detects a hang
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_beside_its_training(browser, small_store, tmp_path):
    """The curve grows while `ncelm train` is running. Training is stopped for moments: no time limit decides."""
    run, epochs = tmp_path / "live", 100
    options = ["--dim", "100", "--epochs", str(epochs), "--threads", "1"]
    command = [sys.executable, "-m", "ncelm", "train", str(small_store.path), "--out", str(run), *options]
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    context, server = browser.new_context(), None
    try:
        wait_until(lambda: epochs_of(run) >= 2 or training.poll() is not None)
        training.send_signal(signal.SIGSTOP)
        first = epochs_of(run)
        server = Server(run)
        tab = Tab(context, server.url)
        page = tab.open("#tab=run")
        expect(page.locator("#run-notes")).to_contain_text("Live")
        expect(page.locator("#run-notes")).to_contain_text("Training is running.")
        expect(page.locator("#run-summary")).to_contain_text(f"({first} epochs)")
        chart = page.locator("[role=img][aria-label^='Validation perplexity']")
        expect(chart).to_have_attribute("aria-label", re.compile(f"after epoch {first}\\."))
        training.send_signal(signal.SIGCONT)
        wait_until(lambda: epochs_of(run) >= first + 3 or training.poll() is not None)
        training.send_signal(signal.SIGSTOP)
        assert training.poll() is None
        second = epochs_of(run)
        expect(page.locator("#run-summary")).to_contain_text(f"({second} epochs)")
        expect(chart).to_have_attribute("aria-label", re.compile(f"after epoch {second}\\."))
        expect(page.locator("#run-notes")).to_contain_text("Training is running.")
        training.send_signal(signal.SIGCONT)
        assert training.wait(300) == 0
        last = epochs_of(run)
        assert first < second < last
        expect(page.locator("#run-summary")).to_contain_text(f"({last} epochs)")
        expect(page.locator("#run-notes")).to_be_empty()
        assert tab.problems == []
    finally:
        if training.poll() is None:
            training.kill()
            training.wait()
        context.close()
        if server is not None:
            server.stop()


# -- token, errors, hostile text -------------------------------------------------------------------------------------


def test_token(browser, runs):
    server = Server(runs["ngram"], token="sécret")
    context = browser.new_context()
    try:
        tab = Tab(context, server.url)
        page = tab.page
        page.goto(tab.url)
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Use the token").click()
        expect(page.get_by_role("alert")).to_have_text("The token is wrong.")
        page.get_by_label("Token").fill("sécret")
        page.get_by_label("Token").press("Enter")
        expect(page.locator("#model option")).to_have_count(1)
        expect(page.get_by_role("alert")).to_be_empty()
        tab.refused()
        page.reload()
        expect(page.locator("#next button")).to_have_count(10)
        assert page.evaluate("[localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
        assert tab.problems == []
    finally:
        context.close()
        server.stop()


def test_errors_are_shown_in_one_line(tab):
    page = tab.open()
    page.locator("#text").fill("word " * 25_000)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("send it in parts")
    assert "\n" not in alert.text_content()
    tab.refused()
    page.locator("#text").fill("fine")
    expect(page.locator("#colors span")).to_have_text(["fine"])
    expect(alert).to_be_empty()
    page.route("**/score", lambda route: route.abort())
    page.locator("#text").fill("not answered")
    expect(alert).to_have_text("The service does not answer.")
    tab.refused()


def test_markup_is_shown_as_text(tab):
    page = tab.open()
    page.locator("#text").fill(HOSTILE)
    expect(page.locator("#each li").filter(has_text="script").first).to_be_visible()
    assert page.locator("#colors").text_content().replace("\u200b", "") == HOSTILE
    tab.show("gap")
    page.locator("#gap-sentence").fill(f"the _____ said {HOSTILE}")
    page.locator("#gap-choices").fill(f"lion,{HOSTILE.replace(',', '')}")
    page.get_by_role("button", name="Find words").click()
    expect(page.locator("#gap-words .name", has_text="<img src=x")).to_have_count(1)
    tab.show("generate")
    page.locator("#prompt").fill(HOSTILE)
    page.get_by_role("button", name="Generate", exact=True).click()
    expect(page.locator("#generate-status")).to_contain_text("samples")
    assert page.locator("#samples .given").first.text_content() == HOSTILE
    tab.show("words")
    page.locator("#word").fill(HOSTILE)
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("alert")).to_contain_text("not in the model's vocabulary")
    tab.refused()
    assert page.title() == "ncelm: neural"
    assert page.locator("img, main script").count() == 0


def test_a_fragment_is_not_trusted(tab):
    page = tab.open(f"#tab={HOSTILE}&model=../../etc/passwd")
    expect(page.locator("#write")).to_be_visible()
    expect(page.get_by_label("Model", exact=True)).to_have_value("neural")
    page.evaluate("location.hash = '#tab=words&model=ngram'")
    expect(page.locator("#words")).to_be_visible()
    expect(page.get_by_label("Model", exact=True)).to_have_value("ngram")


# -- accessibility ---------------------------------------------------------------------------------------------------


def test_keyboard_only(tab):
    page = tab.open()

    def focused() -> str:
        return page.evaluate("document.activeElement.id || document.activeElement.textContent")

    page.keyboard.press("Tab")
    assert focused() == "model"
    page.keyboard.press("Tab")
    assert focused() == "tab-write"
    for expected in ("gap", "generate", "words", "run", "write"):
        page.keyboard.press("ArrowRight")
        assert focused() == f"tab-{expected}"
        expect(page.locator(f"#{expected}")).to_be_visible()
    page.keyboard.press("End")
    assert focused() == "tab-run"
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert focused() == "text"
    page.keyboard.type("the tin")
    expect(page.locator("#colors span")).to_have_text(["the", "tin"])
    expect(page.locator("#next button")).to_have_count(10)
    expect(page.locator("#write-status")).to_contain_text("perplexity")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#colors span")).not_to_have_count(2)
    expect(page.locator("#next button").first).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


@pytest.mark.parametrize("options", [{"viewport": {"width": 240, "height": 500}}], ids=["narrow"])
def test_the_selected_tab_is_visible_on_a_narrow_screen(tab, options):
    page = tab.open("#tab=run")
    assert page.evaluate("document.getElementById('tabs').scrollWidth > document.getElementById('tabs').clientWidth")
    for name in ("run", "write"):
        tab.page.evaluate(f"selectTab('{name}')")
        edges = page.evaluate(
            "(id) => ['tabs', id].map((each) => document.getElementById(each).getBoundingClientRect().toJSON())",
            f"tab-{name}",
        )
        assert edges[0]["left"] <= edges[1]["left"]
        assert edges[1]["right"] <= edges[0]["right"] + 1  # rounded scroll position
    assert page.evaluate("document.activeElement === document.body")


CHECKS = (Path(__file__).parent / "accessibility.js").read_text()


def axe_source() -> str | None:
    """Return axe-core, if it is installed (npm install axe-core); otherwise only accessibility.js checks the page."""
    root = Path(__file__).parents[2]
    places = [Path(os.environ["NCELM_AXE"])] if "NCELM_AXE" in os.environ else [root / name for name in AXE_FILES]
    return next((place.read_text() for place in places if place.is_file()), None)


@pytest.mark.parametrize(
    "options",
    [
        {"viewport": {"width": 1100, "height": 760}},
        {"viewport": {"width": 1100, "height": 760}, "color_scheme": "dark"},
        {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True},
    ],
    ids=["light", "dark", "phone"],
)
def test_every_tab_is_accessible(tab, options):
    axe = axe_source()
    page = tab.page
    for name in use_all(tab):
        assert page.evaluate(CHECKS) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        if axe is not None:
            page.evaluate(axe)
            violations = page.evaluate("axe.run()")["violations"]
            assert [(each["id"], each["nodes"][0]["html"]) for each in violations] == [], name
    dark = options.get("color_scheme") == "dark"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def test_colors_follow_the_keys_quickly(tab):
    page = tab.open()
    expect(page.locator("#next button")).to_have_count(10)
    page.evaluate("""() => {
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
    }""")
    page.locator("#text").press_sequentially("the tin woodman and the lion", delay=60)
    page.wait_for_timeout(300)
    times = sorted(page.evaluate("window.times"))
    assert len(times) > 10
    assert times[len(times) // 2] < 100  # milliseconds; 20 on an idle machine

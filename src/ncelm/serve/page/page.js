// The page of `ncelm serve`. Text of users and models becomes text nodes, never markup.
"use strict";

const $ = (id) => document.getElementById(id);
const TABS = ["write", "gap", "generate", "words", "run"];
const END = "</s>";
const LOG2 = Math.log(2);
const state = { models: [], model: null, tab: "write" };

// -- elements and numbers ---------------------------------------------------------------------------------------------

/** Return an element with properties and children. Strings become text nodes. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Return a number with few digits. */
function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  if (value < 0) return "−" + number(-value);
  if (value >= 1e9 || (value > 0 && value < 1e-3)) return value.toExponential(1);
  if (value >= 1000 || Number.isInteger(value)) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return value >= 100 ? value.toFixed(1) : value.toFixed(value >= 10 ? 2 : 3);
}

function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function percent(probability) {
  const value = 100 * probability;
  return value >= 0.1 ? value.toFixed(1) + " %" : value >= 0.001 ? value.toFixed(3) + " %" : "under 0.001 %";
}

const shown = (word) => (word === END ? "end of sentence" : word);

/** Return the class of a word with this log P. */
function level(logProbability) {
  const bits = -logProbability / LOG2;
  return bits < 3 ? "" : bits < 6 ? "level1" : bits < 9 ? "level2" : bits < 12 ? "level3" : "level4";
}

/** Fill a list with bars. Each item: name, part (length from 0 to 1), value, and optionally click, pressed, negative. */
function showBars(list, items) {
  const focused = [...list.children].findIndex((item) => item.contains(document.activeElement));
  list.replaceChildren(
    ...items.map((item) => {
      const fill = element("span", { class: item.negative ? "fill negative" : "fill", "aria-hidden": "true" });
      fill.style.width = `${100 * Math.min(Math.max(item.part || 0, 0), 1)}%`;
      const parts = [fill, element("span", { class: "name" }, item.name), element("span", { class: "value" }, item.value)];
      if (!item.click) return element("li", {}, element("span", { class: "bar" }, ...parts));
      const button = element("button", { type: "button", onclick: item.click }, ...parts);
      if (item.pressed !== undefined) button.setAttribute("aria-pressed", String(item.pressed));
      return element("li", {}, button);
    }),
  );
  if (focused >= 0) list.children[Math.min(focused, items.length - 1)]?.querySelector("button")?.focus();
}

/** Return a function that runs `work` once, some milliseconds after its last call. */
function delayed(work, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds);
  };
}

// -- requests ---------------------------------------------------------------------------------------------------------

class ApiError extends Error {}
let asking = null; // the promise of a token, while the form is shown

/** Show the form for the token; return a promise that is resolved when it is submitted. */
function askForToken() {
  asking ??= new Promise((resolve) => {
    const form = $("token-form");
    form.hidden = false;
    $("token").focus();
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem("ncelm-token", $("token").value);
      $("token").value = "";
      form.hidden = true;
      asking = null;
      resolve();
    };
  });
  return asking;
}

/** Return the response of the service; throw `ApiError` with its message if it is an error. */
async function request(path, content, signal) {
  for (;;) {
    const headers = {};
    const token = sessionStorage.getItem("ncelm-token");
    if (token) headers.authorization = `Bearer ${encodeToken(token)}`;
    if (content) headers["content-type"] = "application/json";
    let response;
    try {
      response = await fetch(path, { method: content ? "POST" : "GET", headers, body: content && JSON.stringify(content), signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The service does not answer.");
    }
    if (response.status === 401) {
      if (token && token === sessionStorage.getItem("ncelm-token")) {
        sessionStorage.removeItem("ncelm-token");
        showError("The token is wrong.");
      }
      await askForToken();
      showError("");
      continue;
    }
    if (response.ok) return response;
    const body = await response.json().catch(() => null);
    throw new ApiError(sentence(body?.error?.message ?? `The service answers with status ${response.status}.`));
  }
}

/** Return a token as a header can have it: its UTF-8 bytes, as Latin-1 characters. */
const encodeToken = (token) => String.fromCharCode(...new TextEncoder().encode(token));
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const get = async (path, signal) => (await request(path, undefined, signal)).json();
const post = async (path, content, signal) => (await request(path, { model: state.model?.name, ...content }, signal)).json();

function showError(message) {
  $("error").textContent = message.replace(/\s+/g, " ");
}

/** Run the latest of several tasks: a new one aborts the previous one, whose result is ignored. Errors are shown. */
function latest() {
  let controller = null;
  return async (work) => {
    controller?.abort();
    const own = (controller = new AbortController());
    try {
      const result = await work(own.signal);
      if (controller === own) showError("");
      return controller === own ? result : undefined;
    } catch (error) {
      if (error.name === "AbortError" || controller !== own) return undefined;
      if (!(error instanceof ApiError)) throw error;
      showError(error.message);
      return undefined;
    }
  };
}

// -- tabs and models --------------------------------------------------------------------------------------------------

const views = {}; // tab → {show(): the tab or the model has changed, hide()}

function writeFragment() {
  if (!state.model) return;
  const fragment = new URLSearchParams({ tab: state.tab, model: state.model.name });
  history.replaceState(null, "", `#${fragment}`);
}

/** Scroll `list` sideways until `item` is visible. `scrollIntoView` would also move the start of the Tab key in some browsers. */
function reveal(item, list) {
  const inner = item.getBoundingClientRect(), outer = list.getBoundingClientRect();
  list.scrollLeft += Math.min(0, inner.left - outer.left) + Math.max(0, inner.right - outer.right);
}

function selectTab(tab, focus = false) {
  if (state.tab !== tab) views[state.tab].hide?.();
  state.tab = tab;
  for (const each of TABS) {
    const button = $(`tab-${each}`);
    button.setAttribute("aria-selected", String(each === tab));
    button.tabIndex = each === tab ? 0 : -1;
    $(each).hidden = each !== tab;
  }
  if (focus) $(`tab-${tab}`).focus();
  reveal($(`tab-${tab}`), $("tabs"));
  showError("");
  writeFragment();
  if (state.model) views[tab].show();
}

function selectModel(name) {
  state.model = state.models.find((model) => model.name === name) ?? state.models[0];
  const { kind, vocabulary, sides, tokenizer, lowercase } = state.model;
  $("model").value = state.model.name;
  $("about").textContent = [
    kind, `${number(vocabulary)} words`, sides === "before" ? "reads forwards" : "reads both sides",
    `${tokenizer} tokenizer`, lowercase ? "lower case" : null,
  ].filter(Boolean).join(" · ");
  // the product of P(word | words on both sides) is no probability of the sentence
  const pseudo = sides !== "before";
  $("name-log").textContent = pseudo ? "Pseudo-log-likelihood" : "log P";
  $("name-perplexity").textContent = pseudo ? "Pseudo-perplexity" : "Perplexity";
  $("pseudo").hidden = !pseudo;
  document.title = `ncelm: ${state.model.name}`;
}

function readFragment() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const tab = fragment.get("tab");
  return { tab: TABS.includes(tab) ? tab : "write", model: fragment.get("model") };
}

$("tabs").addEventListener("click", (event) => {
  const tab = event.target.closest("[role=tab]");
  if (tab) selectTab(tab.id.slice(4));
});
$("tabs").addEventListener("keydown", (event) => {
  const place = TABS.indexOf(state.tab);
  const next = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: TABS.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  selectTab(TABS[(next + TABS.length) % TABS.length], true);
});
$("model").addEventListener("change", () => {
  selectModel($("model").value);
  selectTab(state.tab);
});
addEventListener("hashchange", () => {
  const { tab, model } = readFragment();
  if (model && model !== state.model?.name) selectModel(model);
  selectTab(tab);
});

// -- write ------------------------------------------------------------------------------------------------------------

const SCORES = 2000; // lines whose scores are kept
const FAST = 40; // milliseconds
let nextTimer = 0;
const scores = new Map(); // model and line → result of /score
const scoreTask = latest(), nextTask = latest(), compareTask = latest();

const key = (model, line) => `${model}\n${line}`;
const isBlank = (line) => line.trim() === "";

/** Return the scores of all lines, which are requested only if they are not known yet. */
async function scoreLines(model, lines, signal) {
  const missing = [...new Set(lines)].filter((line) => !isBlank(line) && !scores.has(key(model, line)));
  for (let first = 0; first < missing.length; first += 500) {
    const texts = missing.slice(first, first + 500);
    const { results } = await post("/score", { model, texts, words: true }, signal);
    texts.forEach((line, i) => scores.set(key(model, line), results[i]));
  }
  const found = lines.map((line) => (isBlank(line) ? null : scores.get(key(model, line))));
  for (const old of scores.keys()) {
    if (scores.size <= SCORES + lines.length) break;
    scores.delete(old);
  }
  return found;
}

/** Return the sum of scores of lines. */
function total(results) {
  const found = results.filter(Boolean);
  const sum = (name) => found.reduce((value, result) => value + result[name], 0);
  const tokens = sum("tokens");
  const log = sum("log_probability");
  return { log, tokens, unknown: sum("unknown"), perplexity: tokens ? Math.exp(-log / tokens) : NaN };
}

/** Return text in lower case with the same length. */
const lower = (text) => text.replace(/[^\x00-\x7f]|[A-Z]/g, (c) => (c.toLowerCase().length === c.length ? c.toLowerCase() : c));

/** Return [start, end, score] of the words of a line that are found in it, in order. */
function align(line, words) {
  const text = lower(line), found = [];
  let place = 0;
  for (const score of words) {
    if (score.word === END) continue;
    const spellings = score.word === "``" || score.word === "''" ? ['"', score.word] : [lower(score.word)];
    while (/\s/.test(text[place] ?? "")) place++;
    const near = text.slice(place, place + 60 + score.word.length);
    const spelling = spellings.find((each) => near.includes(each));
    if (spelling === undefined) continue;
    const start = place + near.indexOf(spelling);
    place = start + spelling.length;
    found.push([start, place, score]);
  }
  return found;
}

/** Show a line of the text with coloured words. Until its score is known, words before the change keep their colour. */
function colorLine(row, line, result) {
  const old = row.known;
  if (row.line === line && (!result || row.known === result)) return;
  let known = result;
  let places = result ? align(line, result.words) : [];
  if (!result && old && row.line !== undefined) {
    let same = 0;
    while (same < line.length && line[same] === row.line[same]) same++;
    places = row.places.filter(([, end]) => end <= same);
    known = old;
  }
  const parts = [];
  let place = 0;
  for (const [start, end, score] of places) {
    if (start > place) parts.push(line.slice(place, start));
    const style = `${level(score.log_probability)}${score.unknown ? " unknown" : ""}`.trim();
    parts.push(element("span", { class: style }, line.slice(start, end)));
    place = end;
  }
  parts.push(line.slice(place), "\u200b");
  row.replaceChildren(...parts);
  Object.assign(row, { line, known, places });
}

/** Show all lines. `results` is null until scores are known. */
function colorLines(lines, results) {
  const rows = $("colors");
  while (rows.childElementCount > lines.length) rows.lastElementChild.remove();
  while (rows.childElementCount < lines.length) rows.append(element("div"));
  lines.forEach((line, i) => colorLine(rows.children[i], line, results?.[i] ?? null));
}

function showTotals(results) {
  const { log, tokens, unknown, perplexity } = total(results);
  $("total-log").textContent = tokens ? number(log) : "–";
  $("total-perplexity").textContent = number(perplexity);
  $("total-words").textContent = number(tokens);
  $("total-unknown").textContent = number(unknown);
  const words = results.flatMap((result) => result?.words ?? []).slice(-300);
  $("each").replaceChildren(
    ...words.map((score) => {
      const bits = -score.log_probability / LOG2;
      return element(
        "li", { class: level(score.log_probability) },
        element("span", { class: score.unknown ? "unknown" : "" }, shown(score.word)), " ",
        element("small", {}, `${bits.toFixed(1)} bits${score.unknown ? ", unknown" : ""}`),
      );
    }),
  );
}

/** Tell screen readers about the text, when typing has paused. */
const describeTotals = delayed(() => {
  const value = (id) => $(id).textContent;
  const next = $("next").querySelector(".name")?.textContent;
  $("write-status").textContent = value("total-log") === "–" ? "" : `Log P ${value("total-log")}, perplexity ${value("total-perplexity")}, `
    + `${value("total-unknown")} unknown words.${next ? ` Most likely next word: ${next}.` : ""}`;
}, 1000);

const lines = () => $("text").value.split("\n");

let scoring = false; // one request at a time: the service would compute those that are aborted

async function scoreText() {
  if (scoring) return;
  const text = lines(), model = state.model.name, began = performance.now();
  scoring = true;
  let results;
  try {
    results = await scoreTask((signal) => scoreLines(model, text, signal));
  } finally {
    scoring = false;
  }
  const now = lines(), isCurrent = model === state.model.name;
  if (results && isCurrent) colorLines(text, results);
  if (!isCurrent || now.join("\n") !== text.join("\n")) {
    colorLines(now, null);
    return scoreText();
  }
  if (!results) return;
  showTotals(results);
  describeTotals();
  clearTimeout(nextTimer);
  nextTimer = setTimeout(showNextWords, performance.now() - began < FAST ? 0 : 250); // scores of the next key come first
}

async function showNextWords() {
  const text = lines().at(-1);
  const found = await nextTask((signal) => post("/next-words", { text, count: 10 }, signal));
  if (!found) {
    if (state.model.sides !== "before") $("next").replaceChildren();
    return;
  }
  const most = Math.exp(found.words[0]?.log_probability ?? 0);
  showBars($("next"), found.words.map(({ word, log_probability: log }) => ({
    name: shown(word), part: Math.exp(log) / most, value: percent(Math.exp(log)), click: () => append(word),
  })));
}

/** Return the white space between two words of detokenized text. */
function space(before, word) {
  if (before === "" || /\s$/.test(before)) return "";
  if (state.model.tokenizer !== "treebank") return " ";
  return /^([.,;:!?)\]}%]|''|n't|'(s|re|ve|ll|d|m))$/.test(word) || /(^|\s)[([{$]$/.test(before) ? "" : " ";
}

const spelled = (word) => (state.model.tokenizer === "treebank" && (word === "``" || word === "''") ? '"' : word);

function append(word) {
  const text = $("text").value;
  $("text").value = word === END ? `${text}\n` : text + space(text, word) + spelled(word);
  typed();
}

const scoreSoon = delayed(scoreText, 15);
const compareSoon = delayed(async () => {
  $("compare").hidden = state.models.length < 2;
  if (state.models.length < 2 || state.tab !== "write") return;
  const text = lines();
  const results = await compareTask(async (signal) => {
    const found = [];
    for (const { name, sides } of state.models) {
      const shownName = sides === "before" ? name : `${name} (pseudo-likelihood)`;
      found.push([shownName, total(await scoreLines(name, text, signal))]);
    }
    return found;
  });
  if (!results) return;
  $("compare-rows").replaceChildren(
    ...results.map(([name, { log, tokens, perplexity }]) =>
      element("tr", {}, element("th", { scope: "row" }, name),
        element("td", { class: "number" }, tokens ? number(log) : "–"), element("td", { class: "number" }, number(perplexity)))),
  );
}, 400);

function typed() {
  colorLines(lines(), null);
  if (!state.model) return;
  clearTimeout(nextTimer);
  scoreSoon();
  compareSoon();
}

$("text").addEventListener("input", typed);
views.write = {
  show() {
    for (const row of $("colors").children) row.known = undefined;
    typed();
  },
};

// -- fill the gap -----------------------------------------------------------------------------------------------------

const gapTask = latest();

const gapQuestion = () => ({
  sentence: $("gap-sentence").value,
  choices: $("gap-choices").value.split(",").map((choice) => choice.trim()).filter(Boolean),
});

async function fillGap() {
  const { sentence: text, choices } = gapQuestion();
  if (!/_{2,}/.test(text)) return showError("The sentence has no gap: write it as _____.");
  const found = await gapTask((signal) => post("/complete", { sentence: text, ...(choices.length && { choices }) }, signal));
  if (!found) return;
  const best = found.words[0]?.score ?? 0;
  const show = (chosen, parts) => {
    showBars($("gap-words"), found.words.map(({ word, score }) => ({
      name: found.unknown.includes(word) ? `${word} (unknown word)` : word,
      part: score === null ? 0 : Math.exp(score - best),
      value: number(score),
      pressed: word === chosen,
      click: () => explain(word),
    })));
    showContributions(chosen, parts);
  };
  /** Show the contributions for another word. */
  const explain = async (word) => {
    const other = await gapTask((signal) => post("/complete", { sentence: text, choices: [word] }, signal));
    if (!other) return;
    show(word, other.contributions);
  };
  show(found.words[0]?.word, found.contributions);
  $("gap-status").textContent = found.words.length
    ? `${found.words.length} words. The best one is ${found.words[0].word}.` : "No words.";
}

function showContributions(word, parts) {
  const most = Math.max(...parts.map(({ value }) => Math.abs(value)), 1e-9);
  $("parts-help").textContent = parts.length
    ? `What each context word adds to the score of “${word}”. Bars with another colour are negative.`
    : "Only log-bilinear models with words next to the gap have contributions.";
  showBars($("gap-parts"), parts.map(({ word: name, position, value }) => ({
    name: `${name} (${position > 0 ? "+" : "−"}${Math.abs(position)})`,
    part: Math.abs(value) / most, negative: value < 0, value: `${value < 0 ? "" : "+"}${number(value)}`,
  })));
}

$("gap-form").addEventListener("submit", (event) => {
  event.preventDefault();
  fillGap();
});
$("gap-insert").addEventListener("click", () => {
  const field = $("gap-sentence");
  const [start, end] = [field.selectionStart, field.selectionEnd];
  const before = field.value.slice(0, start), after = field.value.slice(end);
  const gap = `${before && !/\s$/.test(before) ? " " : ""}_____${after && !/^\s/.test(after) ? " " : ""}`;
  field.setRangeText(gap, start, end, "end");
  field.focus();
});
views.gap = {
  show() {
    $("gap-words").replaceChildren();
    $("gap-parts").replaceChildren();
    $("parts-help").textContent = $("gap-status").textContent = "";
    if (/_{2,}/.test($("gap-sentence").value)) fillGap();
  },
};

// -- generate ---------------------------------------------------------------------------------------------------------

let generating = null; // AbortController of the request that runs

/** Yield the JSON values of a response with one value per line. */
async function* jsonLines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    rest += value ?? "";
    const complete = rest.split("\n");
    rest = complete.pop();
    for (const line of complete) if (line) yield JSON.parse(line);
    if (done) return;
  }
}

async function generate() {
  generating?.abort();
  const own = (generating = new AbortController());
  const value = (id) => Number($(id).value);
  const prompt = $("prompt").value;
  const content = {
    prompt, count: value("count"), max_words: value("max-words"), seed: value("seed"),
    temperature: value("temperature"), top_p: value("top-p"), stream: true,
  };
  const samples = Array.from({ length: content.count }, () => {
    const text = element("p", {}, element("span", { class: "given" }, prompt));
    const about = element("small");
    return { text, about, item: element("li", {}, text, about), spelling: prompt, log: 0, words: 0 };
  });
  $("samples").replaceChildren(...samples.map((sample) => sample.item));
  $("samples").setAttribute("aria-busy", "true");
  $("generate-status").textContent = "Generating…";
  $("stop").disabled = false;
  showError("");
  let status = "";
  try {
    const response = await request("/generate", { model: state.model.name, ...content }, own.signal);
    for await (const { sentence: index, word, log_probability: log } of jsonLines(response)) {
      if (generating !== own) return;
      const sample = samples[index];
      sample.log += log;
      const ended = word === END;
      if (!ended) {
        sample.words++;
        const gap = space(sample.spelling, word), spelling = spelled(word);
        sample.spelling = word === "``" ? `${sample.spelling}${gap}(` : sample.spelling + gap + spelling; // ( joins the next word
        sample.text.append(gap, element("span", { class: `word ${level(log)}`.trim() }, spelling));
      }
      sample.about.textContent = `${sample.words} words, log P ${number(sample.log)}${ended ? "" : ", not ended"}`;
    }
    status = `${content.count} sample${content.count === 1 ? "" : "s"}, seed ${content.seed}.`;
  } catch (error) {
    if (generating !== own) return;
    if (error.name === "AbortError") status = "Stopped.";
    else if (error instanceof ApiError) showError(error.message);
    else showError("The response has ended early.");
  }
  if (generating !== own) return;
  generating = null;
  $("stop").disabled = true;
  $("samples").removeAttribute("aria-busy");
  $("generate-status").textContent = status;
}

for (const id of ["temperature", "top-p"]) {
  $(id).addEventListener("input", () => ($(`${id}-value`).textContent = Number($(id).value).toFixed(2)));
}
$("generate-form").addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
$("next-seed").addEventListener("click", () => {
  $("seed").value = Number($("seed").value) + 1;
  if ($("generate-form").reportValidity()) generate();
});
$("stop").addEventListener("click", () => generating?.abort());
views.generate = {
  show() {
    generating?.abort();
    $("generate-status").textContent = state.model.sides === "before" ? "" : "This model reads both sides: it fills gaps, but generates no sentences.";
  },
};

// -- words ------------------------------------------------------------------------------------------------------------

const mapTask = latest(), neighborTask = latest();
const map = {
  model: null, words: [], x: [], y: [], places: new Map(), // word → index
  scale: 1, left: 0, top: 0, // the view: screen = (data − (left, top)) · scale
  selected: null, near: new Set(), drawn: [], // labels that are drawn, for clicks
};

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function resetView() {
  const { clientWidth: width, clientHeight: height } = $("map");
  if (!map.words.length || !width) return;
  // without the most distant words, which would make all others small
  const range = (values) => {
    const sorted = [...values].sort((a, b) => a - b);
    return [sorted[Math.floor(0.01 * (sorted.length - 1))], sorted[Math.ceil(0.99 * (sorted.length - 1))]];
  };
  const [x0, x1] = range(map.x), [y0, y1] = range(map.y);
  map.scale = 0.9 * Math.min(width / (x1 - x0 || 1), height / (y1 - y0 || 1));
  map.left = (x0 + x1) / 2 - width / 2 / map.scale;
  map.top = (y0 + y1) / 2 - height / 2 / map.scale;
  draw();
}

function zoom(factor, atX = $("map").clientWidth / 2, atY = $("map").clientHeight / 2) {
  const scale = Math.min(Math.max(map.scale * factor, 1), 1e6);
  map.left += atX / map.scale - atX / scale;
  map.top += atY / map.scale - atY / scale;
  map.scale = scale;
  draw();
}

function pan(dx, dy) {
  map.left -= dx / map.scale;
  map.top -= dy / map.scale;
  draw();
}

/** Move the view so that a word is in the middle. */
function centre(index) {
  const { clientWidth: width, clientHeight: height } = $("map");
  map.left = map.x[index] - width / 2 / map.scale;
  map.top = map.y[index] - height / 2 / map.scale;
}

let frame = 0;
function draw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    drawMap();
    describeSoon();
  });
}

function drawMap() {
  const canvas = $("map"), { clientWidth: width, clientHeight: height } = canvas;
  if (!width) return;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const paint = canvas.getContext("2d");
  paint.scale(ratio, ratio);
  paint.clearRect(0, 0, width, height);
  const [text, muted, accent, background] = ["--text", "--control", "--c1", "--background"].map(style);
  const font = (bold) => `${bold ? "bold 15px" : "13px"} system-ui, sans-serif`;
  paint.textBaseline = "middle";
  const cells = new Set(); // parts of the screen, 12 by 16 pixels, that have a label
  map.drawn = [];
  const place = (index) => [(map.x[index] - map.left) * map.scale, (map.y[index] - map.top) * map.scale];
  const label = (index, color, bold) => {
    const [x, y] = place(index);
    if (x < -100 || x > width || y < -10 || y > height + 10) return;
    paint.font = font(bold);
    const size = paint.measureText(map.words[index]).width;
    const taken = [];
    for (let column = Math.floor(x / 12); column <= Math.floor((x + size + 6) / 12); column++) {
      for (let line = Math.floor((y - 8) / 16); line <= Math.floor((y + 8) / 16); line++) taken.push(`${column},${line}`);
    }
    if (taken.some((cell) => cells.has(cell))) { // no place for the label
      paint.fillStyle = bold ? color : muted;
      paint.globalAlpha = bold ? 1 : 0.5;
      paint.beginPath();
      paint.arc(x, y, bold ? 4 : 1.2, 0, 7);
      paint.fill();
      paint.globalAlpha = 1;
      return;
    }
    taken.forEach((cell) => cells.add(cell));
    paint.fillStyle = color;
    paint.beginPath();
    paint.arc(x, y, bold ? 4 : 2, 0, 7);
    paint.fill();
    if (bold) {
      paint.strokeStyle = background;
      paint.lineWidth = 4;
      paint.lineJoin = "round";
      paint.strokeText(map.words[index], x + 6, y);
    }
    paint.fillText(map.words[index], x + 6, y);
    map.drawn.push([index, x, y, size]);
  };
  const marked = [map.selected, ...map.near].map((word) => map.places.get(word)).filter((index) => index !== undefined);
  marked.forEach((index) => label(index, map.words[index] === map.selected ? accent : style("--c0"), true));
  const isMarked = new Set(marked);
  map.words.forEach((_, index) => isMarked.has(index) || label(index, text, false));
}

/** Describe the map as text, for screen readers. */
const describeSoon = delayed(() => {
  const { clientWidth: width, clientHeight: height } = $("map");
  const inView = map.words.filter((_, i) => {
    const x = (map.x[i] - map.left) * map.scale, y = (map.y[i] - map.top) * map.scale;
    return x >= 0 && x <= width && y >= 0 && y <= height;
  });
  const more = inView.length > 60 ? ` … and ${inView.length - 60} more` : "";
  $("in-view").textContent = inView.length ? `${inView.length} words, most frequent first: ${inView.slice(0, 60).join(" ")}${more}` : "No words.";
}, 150);

async function loadMap() {
  if (map.model === state.model.name) return draw();
  Object.assign(map, { model: null, words: [], x: [], y: [], places: new Map(), selected: null, near: new Set() });
  $("neighbors").replaceChildren();
  $("neighbors-status").textContent = "Search a word to see the words with the most similar vectors.";
  $("vocabulary").replaceChildren();
  if (!state.model.vectors) {
    $("neighbors-status").textContent = "This model has no word vectors.";
    return draw();
  }
  const name = state.model.name;
  const found = await mapTask((signal) => get(`/models/${encodeURIComponent(name)}/map`, signal));
  if (!found) return undefined;
  Object.assign(map, found, { model: name, places: new Map(found.words.map((word, i) => [word, i])) });
  $("vocabulary").replaceChildren(...found.words.map((word) => element("option", { value: word })));
  return resetView();
}

async function search(word, focus = false) {
  const wanted = state.model.lowercase ? word.trim().toLowerCase() : word.trim();
  if (!wanted) return;
  $("word").value = wanted;
  const found = await neighborTask((signal) => post("/neighbors", { word: wanted, count: 15 }, signal));
  if (!found) return;
  map.selected = wanted;
  map.near = new Set(found.words.map((each) => each.word));
  showBars($("neighbors"), found.words.map(({ word: name, similarity }) => ({
    name, part: similarity, value: number(similarity), click: () => search(name, true),
  })));
  const place = map.places.get(wanted);
  if (place !== undefined) centre(place);
  $("neighbors-status").textContent = `Cosine similarity with “${wanted}”${place === undefined ? ", which is too rare for the map" : ""}.`;
  draw();
  if (focus) $("neighbors").querySelector("button")?.focus();
}

$("words-form").addEventListener("submit", (event) => {
  event.preventDefault();
  search($("word").value);
});
$("zoom-in").addEventListener("click", () => zoom(1.5));
$("zoom-out").addEventListener("click", () => zoom(1 / 1.5));
$("zoom-reset").addEventListener("click", resetView);
$("map").addEventListener("keydown", (event) => {
  const actions = {
    ArrowLeft: () => pan(60, 0), ArrowRight: () => pan(-60, 0), ArrowUp: () => pan(0, 60), ArrowDown: () => pan(0, -60),
    "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), 0: resetView,
  };
  if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  actions[event.key]();
});
$("map").addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.offsetX, event.offsetY);
}, { passive: false });

const pointers = new Map(); // pointer → [x, y]
let moved = 0; // pixels since the first pointer went down
$("map").addEventListener("pointerdown", (event) => {
  $("map").setPointerCapture(event.pointerId);
  if (!pointers.size) moved = 0;
  pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
});
$("map").addEventListener("pointermove", (event) => {
  const old = pointers.get(event.pointerId);
  if (!old) return;
  const now = [event.offsetX, event.offsetY];
  const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
  moved += Math.hypot(now[0] - old[0], now[1] - old[1]);
  pointers.set(event.pointerId, now);
  if (!other) return pan(now[0] - old[0], now[1] - old[1]);
  const distance = (place) => Math.max(Math.hypot(place[0] - other[0], place[1] - other[1]), 1);
  return zoom(distance(now) / distance(old), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
});
for (const name of ["pointerup", "pointercancel"]) {
  $("map").addEventListener(name, (event) => {
    const last = pointers.size === 1;
    if (!pointers.delete(event.pointerId) || !last || name !== "pointerup" || moved > 5) return;
    const hit = map.drawn.find(([, x, y, size]) =>
      event.offsetX >= x - 6 && event.offsetX <= x + size + 8 && Math.abs(event.offsetY - y) <= 9);
    if (hit) search(map.words[hit[0]]);
  });
}
new ResizeObserver(draw).observe($("map"));
views.words = { show: loadMap };

// -- run --------------------------------------------------------------------------------------------------------------

const POLL = 2000; // milliseconds between requests while training is not finished
const runTask = latest(), normalizerTask = latest();
let poll = 0, charts = [], shownRun = null, normalizers = { model: null };

/** Return the run and its components that were trained by epochs, with their names. */
function trainedRuns(run) {
  const parts = (run.components ?? []).map((part) => part.run).filter(Boolean);
  return Object.assign([run, ...parts].filter((each) => each.epochs?.length), { main: run });
}

function tick(value) {
  if (value < 0) return `−${tick(-value)}`;
  return value >= 1e4 ? `${tick(value / 1000)} k` : value.toLocaleString("en", { maximumSignificantDigits: 5 });
}

const axis = () => {
  const grid = { stroke: style("--line"), width: 1 };
  return { stroke: style("--muted"), grid, ticks: grid, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
};

/** Add a figure for a chart, and return the place of the chart in it. */
function figure(title, description) {
  const place = element("div", { role: "img", "aria-label": `${title}. ${description}` });
  $("charts").append(element("figure", { class: "chart" }, element("figcaption", {}, title), place));
  return place;
}

/** Return a function that draws a chart in its place, with the width of the place. */
const plotter = (place, data, options) => () => {
  const size = { width: Math.max(place.clientWidth, 200), height: 220 };
  charts.push(new uPlot({ ...size, cursor: { drag: { x: false, y: false } }, ...options }, data, place));
};

/** Add a chart with one line per run, or with bands of mean ± std. Return the function that draws it. */
function chart(title, runs, y, deviation) {
  const used = runs.filter((run) => run.epochs.some((record) => y in record));
  if (!used.length) return null;
  const xs = [...new Set(used.flatMap((run) => run.epochs.map((record) => record.epoch)))].sort((a, b) => a - b);
  const column = (run, value) => xs.map((x) => value(run.epochs.find((record) => record.epoch === x)) ?? null);
  const colors = ["--c0", "--c1", "--c2", "--c3"].map(style);
  const data = [xs], series = [{ label: "Epoch", value: (_, x) => (x === null ? "–" : number(x)) }], bands = [];
  const values = (_, v) => (v === null ? "–" : number(v));
  used.forEach((run, i) => {
    const stroke = colors[i % colors.length];
    data.push(column(run, (record) => record?.[y]));
    const isPart = used.length > 1 || run !== runs.main;
    series.push({ label: isPart ? run.name : deviation ? "Mean" : title, stroke, width: 2, points: { show: xs.length < 40, size: 7 }, value: values });
    if (!deviation) return;
    const first = series.length;
    for (const [sign, name] of [[1, "mean + std"], [-1, "mean − std"]]) {
      data.push(column(run, (record) => (record && deviation in record ? record[y] + sign * record[deviation] : undefined)));
      series.push({ label: name, stroke, width: 1, dash: [4, 4], points: { show: false }, value: values });
    }
    bands.push({ series: [first, first + 1], fill: `${stroke}26` });
  });
  const last = used.map((run) => `${run.name}: ${number(run.epochs[0][y])} after epoch ${run.epochs[0].epoch}, `
    + `${number(run.epochs.at(-1)[y])} after epoch ${run.epochs.at(-1).epoch}`).join("; ");
  return plotter(figure(title, `${last}.`), data, {
    series, bands,
    scales: { x: { time: false, range: xs.length > 1 ? undefined : () => [xs[0] - 1, xs[0] + 1] } },
    axes: [
      { ...axis(), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], label: "Epoch", labelSize: 22, size: 32 },
      { ...axis(), size: 62, values: (_, ticks) => ticks.map(tick) },
    ],
  });
}

/** Add the histogram of log Z. Return the function that draws it. */
function histogram({ split, contexts, edges, counts }) {
  if (!counts.length) return null;
  const stroke = style("--c0");
  const place = figure("Histogram of log Z", `${contexts} contexts of the split ${split}, from ${number(edges[0])} to ${number(edges.at(-1))}.`);
  return plotter(place, [edges, [...counts, null]], {
    series: [
      { label: "log Z", value: (_, x) => (x === null ? "–" : tick(x)) },
      { label: "Contexts", stroke, fill: `${stroke}40`, width: 1, points: { show: false }, paths: uPlot.paths.bars({ size: [1, 100], align: 1 }) },
    ],
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, high * 1.05] } },
    axes: [{ ...axis(), label: "log Z", labelSize: 22, size: 32, values: (_, ticks) => ticks.map(tick) }, { ...axis(), size: 62 }],
  });
}

/** Return a table. Columns: [title, value of a row, whether it is a number]. */
function table(caption, rows, columns) {
  const cell = ([, value, isNumber], row, i) => {
    const made = element(i ? "td" : "th", i ? {} : { scope: "row" }, value(row));
    if (isNumber) made.className = "number";
    return made;
  };
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", {}, element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...columns.map(([title, , isNumber]) =>
        element("th", { scope: "col", class: isNumber ? "number" : "" }, title)))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...columns.map((column, i) => cell(column, row, i)))))));
}

const settingColumns = [
  ["Option", (row) => element("code", {}, row.flag)], ["Value", (row) => String(row.value ?? "–")],
  ["Default", (row) => String(row.default ?? "–")], ["Meaning", (row) => row.help ?? ""],
];
const epochColumns = [
  ["Epoch", "epoch"], ["Loss", "loss"], ["Validation perplexity", "valid_perplexity"], ["log Z, mean", "valid_log_z_mean"],
  ["log Z, std", "valid_log_z_std"], ["Learning rate", "learning_rate"], ["Seconds", "seconds"], ["Words/s", "words_per_second"],
];

function details(title, ...content) {
  return element("details", {}, element("summary", {}, title), ...content);
}

function showRun(run) {
  const cards = [
    ["Validation perplexity", run.valid_perplexity], ["Test perplexity", run.test_perplexity], ["Best epoch", run.best_epoch],
    ["Words per second", run.words_per_second], ["Training time", run.seconds],
    ["log Z", run.log_z_mean, run.log_z_std],
  ].filter(([, value]) => typeof value === "number");
  $("run-summary").textContent = run.summary;
  const notes = run.notes.map((note) => element("p", { class: "note" }, note));
  if (run.finished === false) notes.unshift(element("p", { class: "note" }, `Live: updated every ${POLL / 1000} s.`));
  $("run-notes").replaceChildren(...notes);
  $("run-cards").replaceChildren(
    ...cards.map(([name, value, deviation]) => element("div", {}, element("dt", {}, name),
      element("dd", {}, name === "Training time" ? duration(value) : number(value) + (deviation === undefined ? "" : ` ± ${number(deviation)}`)))),
  );
  const open = [...$("run-tables").querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
  const tables = [];
  if (run.components?.length) {
    tables.push(element("h3", {}, "Components"), table("Components of the model", run.components, [
      ["Name", (row) => row.name], ["Kind", (row) => row.kind], ["Weight", (row) => number(row.weight), true],
      ["Validation perplexity", (row) => number(row.valid_perplexity), true],
    ]));
  }
  for (const each of [run, ...(run.components ?? []).map((part) => part.run).filter(Boolean)]) {
    const of = each === run ? "" : ` of ${each.name}`;
    if (each.ngram?.orders.length) {
      tables.push(element("h3", {}, `N-grams${of}`), table("Number of n-grams of each order", each.ngram.orders, [
        ["Order", (row) => String(row.order)], ["N-grams", (row) => number(row.ngrams), true],
        ["Least count", (row) => number(row.min_count), true],
        ["Discounts", (row) => (row.discounts ?? []).map(number).join(", ")],
      ]));
    }
    if (each.settings?.length) {
      const changed = each.settings.filter((row) => row.changed), rest = each.settings.filter((row) => !row.changed);
      tables.push(element("h3", {}, `Settings${of}`));
      if (changed.length) tables.push(table("Options that differ from the defaults", changed, settingColumns));
      tables.push(details(`${rest.length} defaults${of}`, table("Options with their defaults", rest, settingColumns)));
    }
    if (each.epochs?.length) {
      const columns = epochColumns.filter(([, name]) => each.epochs.some((record) => name in record))
        .map(([title, name]) => [title, (record) => number(record[name]), true]);
      tables.push(details(`All epochs${of}`, table("Metrics of each epoch", each.epochs, columns)));
    }
  }
  $("run-tables").replaceChildren(...tables);
  for (const summary of $("run-tables").querySelectorAll("summary")) summary.parentElement.open = open.includes(summary.textContent);
  drawCharts(run);
}

function drawCharts(run) {
  charts.forEach((plot) => plot.destroy());
  charts = [];
  $("charts").replaceChildren();
  const runs = trainedRuns(run);
  const plots = [
    chart("Validation perplexity", runs, "valid_perplexity"),
    chart("Training loss", runs, "loss"),
    chart("log Z, mean ± standard deviation", runs, "valid_log_z_mean", "valid_log_z_std"),
    normalizers.model === state.model.name ? histogram(normalizers) : null,
    chart("Learning rate", runs, "learning_rate"),
    chart("Words per second", runs, "words_per_second"),
  ];
  plots.forEach((plot) => plot?.()); // when all figures have their places
}

/** Load the histogram of log Z, once per model. */
async function loadNormalizers(name) {
  if (normalizers.model === name) return;
  const found = await normalizerTask((signal) => get(`/models/${encodeURIComponent(name)}/log-z`, signal));
  if (!found || name !== state.model.name) return;
  normalizers = { ...found, model: name };
  if (state.tab === "run" && shownRun && found.counts.length) drawCharts(JSON.parse(shownRun));
}

async function loadRun() {
  clearTimeout(poll);
  const name = state.model.name;
  const found = await runTask((signal) => get(`/models/${encodeURIComponent(name)}/run`, signal));
  const run = found?.runs[0];
  if (state.tab !== "run" || name !== state.model.name) return;
  if (run) {
    const content = JSON.stringify(run);
    if (content !== shownRun) showRun(run);
    shownRun = content;
    loadNormalizers(name);
  }
  if (!run || run.finished === false) poll = setTimeout(loadRun, POLL);
}

views.run = {
  show() {
    shownRun = null;
    loadRun();
  },
  hide: () => clearTimeout(poll),
};
const redraw = delayed(() => state.tab === "run" && shownRun && drawCharts(JSON.parse(shownRun)), 150);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) redraw();
  width = innerWidth;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  redraw();
  draw();
});

// -- start ------------------------------------------------------------------------------------------------------------

async function start() {
  const { tab, model } = readFragment();
  selectTab(tab);
  try {
    state.models = (await get("/models")).models;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return showError(error.message);
  }
  $("model").replaceChildren(...state.models.map(({ name }) => element("option", { value: name }, name)));
  selectModel(model);
  return selectTab(state.tab);
}
start();

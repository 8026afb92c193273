"""The endpoints of `ncelm serve`, their limits and errors."""

import json
import math
import shutil

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")
pytest.importorskip("httpx2", reason="needs httpx2, for the client of the tests")

import ncelm


@pytest.fixture(scope="module")
def lm(served_runs):
    return ncelm.load(served_runs / "neural", threads=1)


def words_of(lm):
    """Return a sentence of frequent words."""
    return " ".join(word for word in lm.vocabulary.words if word not in ("<unk>", "</s>"))[:200].rsplit(" ", 1)[0]


def ok(response):
    assert response.status_code == 200, response.text
    return response.json()


def refused(response, status, fragment=""):
    assert response.status_code == status, response.text
    message = response.json()["error"]["message"]
    assert fragment in message
    assert "\n" not in message


# -- results ---------------------------------------------------------------------------------------------------------


def test_score(client, lm):
    text = words_of(lm)
    found = ok(client.post("/score", json={"texts": [text, "zebra"], "words": True}))
    assert found["model"] == "neural"
    assert [each["log_probability"] for each in found["results"]] == pytest.approx(lm.score([text, "zebra"]), abs=1e-9)
    for each in found["results"]:
        assert each["perplexity"] == pytest.approx(math.exp(-each["log_probability"] / each["tokens"]))
        assert sum(word["log_probability"] for word in each["words"]) == pytest.approx(each["log_probability"])
    assert found["results"][1]["unknown"] == 1
    (single,) = ok(client.post("/score", json={"texts": text}))["results"]
    assert single["log_probability"] == found["results"][0]["log_probability"]


def test_unnormalised_scores_say_so(client, lm):
    found = ok(client.post("/score", json={"texts": "a", "mode": "unnormalised"}))
    assert found["note"].startswith("unnormalised")
    assert "perplexity" not in found["results"][0]
    (expected,) = lm.scores_of(["a"], mode="unnormalised")
    assert found["results"][0]["log_probability"] == pytest.approx(expected.log_probability)


def test_fast_scores(served_runs, client, make_client):
    refused(client.post("/score", json={"texts": "a", "mode": "fast"}), 422, "ncelm normalizer RUN")
    from ncelm.serve.service import Limits, Service

    run = shutil.copytree(served_runs / "neural", served_runs / "fast")
    ncelm.fit_normalizer(run, units=20, contexts=200, threads=1)
    with Service([run], 1, Limits()) as service:
        service.warm_up()
        found = ok(make_client(service=service).post("/score", json={"texts": ["a", "the"], "mode": "fast"}))
    lm = ncelm.load(run, threads=1)
    assert [each["log_probability"] for each in found["results"]] == pytest.approx(lm.score(["a", "the"], mode="fast"))
    assert found["note"] == f"log Z is estimated, with an error of {lm.normalizer_error}"
    assert all("perplexity" not in each for each in found["results"])


def test_perplexity(client, lm):
    texts = [words_of(lm), "a b"]
    found = ok(client.post("/perplexity", json={"texts": texts}))
    assert found["perplexity"] == pytest.approx(lm.perplexity(texts))
    assert found["sentences"] == 2


def test_next_words(client, lm):
    found = ok(client.post("/next-words", json={"text": "a", "count": 3}))
    assert [(each["word"], each["log_probability"]) for each in found["words"]] == lm.next_words("a", 3)


@pytest.mark.parametrize("model", ["neural", "mixture"])
def test_generate(client, served_runs, model):
    options = {"count": 2, "max_words": 5, "seed": 3, "temperature": 0.8}
    found = ok(client.post("/generate", json={"model": model, **options}))
    expected = ncelm.load(served_runs / model, threads=1).generate(**options)
    assert [each["text"] for each in found["sentences"]] == [each.text for each in expected]
    response = client.post("/generate", json={"model": model, "stream": True, **options})
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    for i, each in enumerate(expected):
        assert [line["word"] for line in lines if line["sentence"] == i and line["word"] != "</s>"] == list(each.words)


def test_complete_and_contributions(client, lm):
    one, two, three = lm.vocabulary.words[2:5]
    found = ok(client.post("/complete", json={"sentence": f"{one} _____ {two}", "choices": [three, one]}))
    assert {each["word"] for each in found["words"]} == {one, three}
    assert [each["score"] for each in found["words"]] == sorted((e["score"] for e in found["words"]), reverse=True)
    (part,) = found["contributions"]
    assert part["word"] == one
    assert part["position"] == -1
    best = ok(client.post("/complete", json={"sentence": f"{one} _____", "count": 4}))
    assert len(best["words"]) == 4


def test_contributions_are_the_terms_of_the_score(lm):
    from ncelm.serve.service import contributions

    a, b, c = lm.vocabulary.words[2:5]
    parts = contributions(lm, f"{a} {b} _____", c)
    ids = lm.vocabulary.encode([a, b])[None]
    target = lm.vocabulary.encode([c])[0]
    expected = lm.model.scores(ids)[0, target] - lm.model.biases[target]
    assert sum(part["value"] for part in parts) == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("model", ["neural", "mixture"])
def test_neighbors_and_map(client, served_runs, model):
    lm = ncelm.load(served_runs / "neural", threads=1)
    word = lm.vocabulary.words[3]
    found = ok(client.post("/neighbors", json={"model": model, "word": word, "count": 3}))
    assert [each["word"] for each in found["words"]] == [near for near, _ in lm.neighbors(word, 3)]
    places = ok(client.get(f"/models/{model}/map"))
    assert len(places["words"]) == len(places["x"]) == len(places["y"]) > 10
    assert "<unk>" not in places["words"]


def test_models_and_runs(client):
    assert [each["name"] for each in ok(client.get("/models"))["models"]] == ["neural", "mixture"]
    (run,) = ok(client.get("/models/neural/run"))["runs"]
    assert [record["epoch"] for record in run["epochs"]] == [1, 2]


def test_health_metrics_and_description(client, make_client, service):
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").status_code == 200
    client.post("/score", json={"texts": "a"})
    metrics = client.get("/metrics").text
    assert 'ncelm_requests_total{path="/score",status="200"}' in metrics
    assert "ncelm_batches_total" in metrics
    document = ok(client.get("/openapi.json"))
    assert document["paths"]["/score"]["post"]["requestBody"]["content"]["application/json"]["schema"]["required"]
    for path in document["paths"]:
        method = "get" if "get" in document["paths"][path] else "post"
        target = path.replace("{name}", "neural")
        assert client.request(method, target, json={} if method == "post" else None).status_code in (200, 422)


def test_not_ready(service):
    from starlette.testclient import TestClient

    from ncelm.serve.app import Options, create_app

    app = create_app(service, Options(allowed_hosts=("testserver",), access_log=False))
    assert TestClient(app).get("/readyz").status_code == 503


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content", "status", "fragment"),
    [
        ("/score", {}, 422, "texts is missing"),
        ("/score", {"texts": []}, 422, "texts"),
        ("/score", {"texts": ["a", 1]}, 422, "texts"),
        ("/score", {"texts": ["a"] * 21}, 422, "texts"),
        ("/score", {"texts": "a", "mode": "x"}, 422, "exact or fast or unnormalised"),
        ("/score", {"texts": "a", "words": 1}, 422, "true or false"),
        ("/score", {"texts": "a", "other": 1}, 422, "there is no field 'other'"),
        ("/score", {"texts": "a", "model": "../../etc/passwd"}, 404, "there is no model"),
        ("/score", {"texts": "a", "model": 3}, 422, "a string"),
        ("/score", {"texts": "a " * 600}, 413, "500 words"),
        ("/score", [1], 422, "not a JSON object"),
        ("/next-words", {"text": "a", "count": 0}, 422, "count"),
        ("/next-words", {"text": "a", "count": True}, 422, "count"),
        ("/generate", {"count": 100, "max_words": 100}, 422, "more than 200"),
        ("/generate", {"temperature": -1}, 422, "temperature"),
        ("/generate", {"top_p": 0}, 422, "above 0"),
        ("/generate", {"seed": 1.5}, 422, "seed"),
        ("/complete", {"sentence": "no gap"}, 422, "no gaps"),
        ("/complete", {"sentence": "a _____", "choices": []}, 422, "choices"),
        ("/neighbors", {"word": "zebra"}, 422, "zebra"),
    ],
    ids=str,
)
def test_invalid_requests(client, path, content, status, fragment):
    refused(client.post(path, json=content), status, fragment)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"texts": "a"} x',
        b"[" * 10_000,
        b'{"texts": NaN}',
        b'{"texts": "\xc3"}',
        b"\x00",
        b'{"texts": "\\ud800"}',
    ],
    ids=str,
)
def test_bodies_that_are_not_json(client, body):
    refused(client.post("/score", content=body), 400, "not valid JSON")


def test_long_bodies(client):
    refused(client.post("/score", json={"texts": "a" * 30_000}), 413, "20000 bytes")

    def chunks():
        for _ in range(30):
            yield b" " * 1000

    refused(client.post("/score", content=chunks()), 413, "20000 bytes")


def test_other_paths_and_methods(client):
    refused(client.get("/nope"), 404)
    refused(client.get("/models/nope/run"), 404)
    refused(client.get("/models/..%2f..%2fetc%2fpasswd/run"), 404)
    refused(client.get("/score"), 405)
    refused(client.get("/static/../app.py"), 404)


def test_control_characters_and_markup_are_words(client):
    for text in ("<script>alert(1)</script>", "\u0000\u0007\u202e", "a\U0001f600b", "\n\n", ""):
        found = ok(client.post("/score", json={"texts": text, "words": True}))
        assert found["results"][0]["tokens"] >= 1


def test_responses_have_security_headers(client):
    response = client.get("/models")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in client.get("/models", headers={"origin": "http://a.example"}).headers


def test_other_hosts_are_refused(client):
    assert client.get("/models", headers={"host": "evil.example"}).status_code == 400


def test_cors_only_where_configured(make_client):
    client = make_client(cors_origins=("https://a.example",))
    headers = client.get("/models", headers={"origin": "https://a.example"}).headers
    assert headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" not in client.get("/models", headers={"origin": "https://b.example"}).headers


def test_token(make_client):
    client = make_client(token="secret")
    refused(client.get("/models"), 401, "Bearer")
    refused(client.get("/models", headers={"authorization": "Bearer secre"}), 401)
    refused(client.post("/score", json={"texts": "a"}, headers={"authorization": "Basic secret"}), 401)
    ok(client.get("/models", headers={"authorization": "Bearer secret"}))
    assert client.get("/healthz").status_code == 200


def test_the_access_log_is_json(make_client, capsys):
    make_client(access_log=True).post("/score", json={"texts": "a"})
    record = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (record["method"], record["path"], record["status"]) == ("POST", "/score", 200)


def test_an_internal_error_is_a_response(make_client, service, monkeypatch, capsys):
    async def broken(values):
        raise RuntimeError("oh no")

    monkeypatch.setattr(service, "score", broken)
    refused(make_client().post("/score", json={"texts": "a"}), 500, "internal error")
    assert "oh no" in capsys.readouterr().err


# -- OpenAI ----------------------------------------------------------------------------------------------------------


def test_completions(client, lm):
    found = ok(
        client.post("/v1/completions", json={"model": "neural", "prompt": "a", "max_tokens": 4, "temperature": 0})
    )
    (choice,) = found["choices"]
    (expected,) = lm.generate("a", max_words=4, temperature=0)
    assert choice["text"] == " ".join(expected.words)
    assert choice["finish_reason"] == ("stop" if expected.finished else "length")
    assert found["usage"]["prompt_tokens"] == 1
    assert found["object"] == "text_completion"


def test_completions_echo_log_probabilities(client, lm):
    """What lm-evaluation-harness asks for: the sum over a continuation, and whether it is the most likely one."""
    words = [word for word in lm.vocabulary.words[2:20] if word.isalpha()]
    text = " ".join(words)
    request = {"prompt": [text, words[0]], "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1}
    first, second = ok(client.post("/v1/completions", json=request))["choices"]
    assert first["logprobs"]["tokens"] == words
    expected = [word.log_probability for word in lm.full_scores(text, end=False)]
    assert first["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-6)
    for value, top in zip(first["logprobs"]["token_logprobs"], first["logprobs"]["top_logprobs"], strict=True):
        assert value <= max(top.values()) + 1e-9
    assert second["index"] == 1


def test_completions_with_ends_of_sentences(client, lm):
    """lm-evaluation-harness puts `</s>` before a text, and leaves out the log-probability of the last word."""
    words = [word for word in lm.vocabulary.words[2:20] if word.isalpha()][:4]
    end = lm.vocabulary.end_id
    first, second = ([int(i) for i in lm.vocabulary.encode(part)] for part in (words[:2], words[2:]))
    request = {"prompt": [end, *first, end, *second], "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    scores = ok(client.post("/v1/completions", json=request))["choices"][0]["logprobs"]
    assert scores["tokens"][:-1] == ["</s>", *words[:2], "</s>", *words[2:]]
    sentences = [lm.full_scores(ncelm.Tokens(part)) for part in ([], words[:2], words[2:])]
    expected = [word.log_probability for sentence in sentences for word in sentence]
    assert scores["token_logprobs"][:-1] == pytest.approx(expected[:-1], abs=1e-6)
    best = [lm.distribution(ncelm.Tokens(part)).max() for part in ([], [], words[:1], words[:2], [], words[2:3])]
    tops = [max(top.values()) for top in scores["top_logprobs"]]
    assert tops[:-1] == pytest.approx(best, abs=1e-5)


def test_a_completion_that_ends_at_once_has_a_log_probability(client, lm):
    """Without it, clients that leave out the last log-probability would leave out a word of the prompt."""
    end = lm.vocabulary.end_id
    text = next(word for word in lm.vocabulary.words[2:] if lm.distribution(ncelm.Tokens([word])).argmax() == end)
    request = {"prompt": text, "max_tokens": 1, "echo": True, "logprobs": 0, "temperature": 0}
    (choice,) = ok(client.post("/v1/completions", json=request))["choices"]
    assert (choice["finish_reason"], choice["logprobs"]["tokens"][-1]) == ("stop", "</s>")
    assert len(choice["logprobs"]["tokens"]) == len(choice["text"].split()) + 1
    assert choice["logprobs"]["token_logprobs"][-1] == pytest.approx(lm.full_scores(text)[-1].log_probability, abs=1e-5)


def test_tokenizer(client, lm):
    assert ok(client.get("/tokenizer_info"))["eos_token"] == "</s>"
    found = ok(client.post("/tokenize", json={"prompt": "</s> The lion\n zorp. </s>", "add_special_tokens": False}))
    ids = lm.vocabulary.encode(["the", "lion", "zorp", "."]).tolist()
    assert found["tokens"] == [lm.vocabulary.end_id, *ids, lm.vocabulary.end_id]
    back = ok(client.post("/detokenize", json={"tokens": found["tokens"]}))
    assert back == {"prompt": "</s> the lion <unk> . </s>"}
    assert ok(client.post("/tokenize", json={"prompt": ""}))["tokens"] == []
    refused(client.post("/tokenize", json={"prompt": 1}), 422, "prompt")
    refused(client.post("/tokenize", json={"prompt": "a", "model": "other"}), 404, "no model")
    refused(client.post("/detokenize", json={"tokens": [10**6]}), 422, "largest id")


def test_completions_of_ids_several_and_stops(client, lm):
    ids = [int(i) for i in lm.vocabulary.encode(lm.vocabulary.words[2:4])]
    found = ok(client.post("/v1/completions", json={"prompt": ids, "n": 3, "max_tokens": 5, "seed": 2}))
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    first = found["choices"][0]["text"].split()
    again = {"prompt": ids, "n": 3, "max_tokens": 5, "seed": 2, "stop": first[1:2] or ["x"]}
    assert ok(client.post("/v1/completions", json=again))["choices"][0]["text"].split() == first[:1]
    refused(client.post("/v1/completions", json={"prompt": [10**6]}), 422, "largest id")
    ok(client.post("/v1/completions", json={"prompt": "a", "user": "ignored", "presence_penalty": 0, "max_tokens": 1}))


def test_completions_are_streamed(client, lm):
    request = {"prompt": "a", "max_tokens": 6, "seed": 5, "stream": True}
    response = client.post("/v1/completions", json=request)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
    assert text.split() == list(lm.generate("a", max_words=6, seed=5)[0].words)
    assert json.loads(events[-2])["choices"][0]["finish_reason"] in ("stop", "length")
    refused(client.post("/v1/completions", json={**request, "n": 2}), 422, "stream goes with")


def test_openai_models(client):
    assert [each["id"] for each in ok(client.get("/v1/models"))["data"]] == ["neural", "mixture"]


def test_a_slash_at_the_end_is_not_redirected(client):
    assert client.get("/models/", follow_redirects=False).status_code == 404

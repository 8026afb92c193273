"""lm-evaluation-harness, unchanged, against `/v1/completions`: its figures are those of ncelm."""

import importlib.util
import json
import math
import os
import subprocess
import sys

import pytest

import ncelm

# the package is too large for the dependencies of developers: NCELM_LM_EVAL names its command in another environment
COMMAND = (
    [sys.executable, "-m", "lm_eval"]
    if importlib.util.find_spec("lm_eval")
    else list(filter(None, [os.environ.get("NCELM_LM_EVAL")]))
)
pytestmark = [
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.skipif(
        not COMMAND, reason="needs lm_eval (pip install 'lm_eval[api]'), or its path in the variable NCELM_LM_EVAL"
    ),
]
pytest.importorskip("uvicorn", reason="needs the extra `serve`")

TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "{{before}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: " "
metric_list:
  - metric: acc
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
""",
    "generation": """
output_type: generate_until
doc_to_text: "{{before}}"
doc_to_target: "{{text}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 12
  temperature: 0.0
metric_list:
  - metric: exact_match
""",
}
DOCUMENTS = [
    {
        "before": "the tin woodman",
        "choices": ["said", "zorp", "of the"],
        "answer": 0,
        "text": "dorothy said to the lion",
    },
    {"before": "dorothy and her", "choices": ["the", "friends", "house was"], "answer": 1, "text": "the wicked witch"},
    {"before": "the", "choices": ["scarecrow", "to", "a little girl"], "answer": 0, "text": "he had never seen zorp"},
]


@pytest.fixture
def results(serving, tmp_path):
    """Run the harness on three tasks; return its results and samples of each task."""
    _, url = serving("--no-access-log")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    for name, content in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test"
        (tmp_path / f"{name}.yaml").write_text(head + content)
    command = [
        *COMMAND, "--model", "local-completions", "--model_args", f"model=neural,base_url={url}/v1/completions",
        "--tasks", ",".join(TASKS), "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"),
        "--log_samples",
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (tmp_path / "out").rglob("results_*.json")
    samples = {}
    for name in TASKS:
        (lines,) = (tmp_path / "out").rglob(f"samples_{name}_*.jsonl")
        found = sorted(map(json.loads, lines.read_text().splitlines()), key=lambda sample: sample["doc_id"])
        samples[name] = [sample["filtered_resps"] for sample in found]
    return json.loads(file.read_text())["results"], samples


def test_the_figures_are_those_of_ncelm(results, served_runs):
    found, samples = results
    lm = ncelm.load(served_runs / "neural")

    def total(text):
        return sum(word.log_probability for word in lm.full_scores(text, end=False))

    correct = 0
    for document, responses in zip(DOCUMENTS, samples["choices"], strict=True):
        before, choices = document["before"], document["choices"]
        expected = [total(f"{before} {choice}") - total(before) for choice in choices]
        assert [float(value) for value, _ in responses] == pytest.approx(expected, abs=1e-4)
        greedy = []
        for choice in choices:
            words, start = lm.text.words(f"{before} {choice}"), len(lm.text.words(before))
            best = [lm.distribution(ncelm.Tokens(words[:place])).argmax() for place in range(start, len(words))]
            greedy.append(best == lm.vocabulary.encode(words[start:]).tolist())
        assert [str(value) == "True" for _, value in responses] == greedy
        correct += max(range(len(choices)), key=lambda i: expected[i]) == document["answer"]
    assert found["choices"]["acc,none"] == pytest.approx(correct / len(DOCUMENTS))

    texts = [document["text"] for document in DOCUMENTS]
    words = sum(len(text.split()) for text in texts)
    perplexity = math.exp(-sum(map(total, texts)) / words)
    assert found["rolling"]["word_perplexity,none"] == pytest.approx(perplexity, rel=1e-5)

    for document, (response,) in zip(DOCUMENTS, samples["generation"], strict=True):
        (generated,) = lm.generate(document["before"], temperature=0, max_words=12)
        expected = " ".join(generated.words).split(" .")[0]
        assert response.strip() == expected.removeprefix(".").strip()

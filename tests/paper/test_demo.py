"""The demonstration, with a small text and small models."""

import inspect

import pytest

from ncelm.errors import NcelmError
from ncelm.paper import demo
from ncelm.training.config import TrainConfig


@pytest.fixture
def small(monkeypatch, small_store):
    """A demonstration of about a second."""
    signature = inspect.signature(demo.prepare)

    def prepare(*arguments, **options):
        signature.bind(*arguments, **options)
        return small_store

    config = TrainConfig().with_changes(dim=8, context=2, noise_samples=5)
    monkeypatch.setattr(demo, "TrainConfig", lambda: config)
    monkeypatch.setattr(demo, "prepare", prepare)
    monkeypatch.setattr(demo, "write_text", lambda path: None)


def test_demo_compares_nce_and_maximum_likelihood(small, tmp_path):
    messages = []
    results = demo.demo(tmp_path / "demo", 1, messages.append, lambda at: None)
    assert set(results) == {"NCE", "ML"}
    for result in results.values():
        assert result["epochs"] == 3
        assert len(result["curve"]) == 3
        assert 20 < result["test_perplexity"] < 500
    assert abs(results["NCE"]["test_log_z_mean"]) < 0.5  # self-normalized
    text = "\n".join(messages)
    assert "speed-up" in text
    assert demo.SENTENCE in text
    assert "<svg" in (tmp_path / "demo" / "report.html").read_text()
    with pytest.raises(NcelmError, match="exists"):
        demo.demo(tmp_path / "demo", 1, messages.append, lambda at: None)


def test_an_interrupted_demo_leaves_nothing(small, tmp_path):
    def interrupt(at):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.demo(tmp_path / "demo", 1, lambda line: None, interrupt)
    assert not (tmp_path / "demo").exists()


def test_the_text_is_prose():
    sentence = "Return a list of all the words in the given string, in order."
    docstring = f"{sentence}\n\n>>> split(1)\n2\n\nx: int, y: int -> z: tuple[int, int] (1, 2, 3, 4, 5)."
    assert list(demo._prose(docstring)) == [sentence]


def test_short_documentation_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "_documentation", lambda: iter(["Too short to be a text for a language model."]))
    with pytest.raises(NcelmError, match="too short for the demo"):
        demo.write_text(tmp_path / "text")
    assert not (tmp_path / "text").exists()

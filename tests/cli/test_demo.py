"""`ncelm demo`, with a stub for the demonstration."""

import pytest


@pytest.fixture
def demo(monkeypatch):
    def stub(out, threads, say, progress):
        say(f"training in {out}")
        return {"threads": threads}

    monkeypatch.setattr("ncelm.paper.demo.demo", stub)


def test_demo(demo, output):
    assert output(["demo"]) == "training in demo\n"


def test_json(demo, capsys):
    from ncelm.cli.main import main

    assert main(["demo", "--out", "there", "--threads", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ('{"threads": 2}\n', "training in there\n")

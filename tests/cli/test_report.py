"""`ncelm report`."""

import shutil


def test_a_report_is_written(folder, output, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    assert output(["report", run]) == f"{run / 'report.html'}\n"
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert output(["report", run, "--no-samples"]) == f"{run / 'report.html'}\n"


def test_several_runs(folder, output, tmp_path):
    out = tmp_path / "both.html"
    assert output(["report", folder / "run", folder / "run", "--out", out, "--no-samples"]) == f"{out}\n"
    assert "Comparison of 2 runs" in out.read_text()


def test_json(folder, answer):
    (data,) = answer(["report", folder / "run"])["runs"]
    assert data["kind"] == "log-bilinear"
    assert len(data["epochs"]) == 2
    assert data["samples"]["sentences"]
    assert not (folder / "run" / "report.html").exists()


def test_errors(folder, fails, tmp_path):
    fails(["report"], "no run was given")
    fails(["report", tmp_path / "absent"], "there is no run at")
    fails(["report", folder / "run", "--json", "--out", tmp_path / "x.html"], "leave --out or --json out")
    (tmp_path / "mine.html").write_text("mine")
    fails(["report", folder / "run", "--out", tmp_path / "mine.html"], "exists already and is not a report")
    fails(["report", folder / "run", "--store", tmp_path], "is not a token store")


def test_the_help_is_short(output):
    assert output(["report", "--help"]).count("\n") < 40

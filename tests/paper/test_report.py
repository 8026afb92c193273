"""Numbers of the report that are computed from metrics."""

import pytest

from ncelm.paper.report import TARGET, Result, save_page, write_page
from ncelm.paper.rows import table1


def result(*records):
    return Result(table1()[0], list(range(len(records))), list(records), [None] * len(records))


def test_time_to_a_perplexity_is_interpolated():
    lines = [{"seconds": 10.0 * n, "test_perplexity": p} for n, p in ((1, 400.0), (2, 200.0), (3, 100.0))]
    runs = result(lines, lines[:1])
    assert runs.time_to(200.0) == pytest.approx(20.0)
    assert runs.time_to(200.0 / 2**0.5) == pytest.approx(25.0)
    assert runs.time_to(500.0) == 10.0
    assert runs.time_to(50.0) is None


def test_the_best_epoch_is_that_of_the_lowest_validation_perplexity():
    lines = [{"epoch": n, "valid_perplexity": p} for n, p in ((1, 300.0), (2, 200.0), (3, 250.0))]
    assert result(lines, []).best("epoch") == [2]


def test_times_are_those_of_the_fastest_seed():
    fast, slow = ([{"epoch": 1, "seconds": s, "words_per_second": 100 / s}] for s in (5.0, 10.0))
    assert result(slow, fast).seconds == 5.0
    assert result(slow, fast).words_per_second == 20.0


def test_a_report_has_no_numbers_that_json_lacks(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_page(tmp_path / "table1", {"perplexity": float("nan")}, "")
    assert list(tmp_path.iterdir()) == []


def test_all_numbers_of_a_row_are_in_the_report(tmp_path):
    """A run of NCE that reaches the target perplexity ten times as fast as one of maximum likelihood."""
    ml, nce = table1()[0], next(row for row in table1() if row.key == "nce-unigram-25")
    records = {
        key: [
            {"epoch": n, "seconds": n * seconds, "words_per_second": 1e4 / seconds, "valid_perplexity": 170.0 / n}
            | {"test_perplexity": p, "best_epoch": 2}
            for n, p in ((1, 200.0), (2, TARGET))
        ]
        for key, seconds in (("ml", 100.0), ("nce", 10.0))
    }
    test = {"perplexity": TARGET, "log_z_mean": 0.01, "log_z_std": 0.25}
    results = [Result(ml, [0], [records["ml"]], [test]), Result(nce, [0], [records["nce"]], [test])]
    report = write_page("table1", results, tmp_path, 1, True, "ncelm reproduce table1")
    assert report["rows"][1]["target_speedup"] == pytest.approx(10.0)
    page = (tmp_path / "table1.md").read_text()
    numbers = ("NCE, k = 25", 1, "**163.5**", 163.1, 85.0, "+0.01 ± 0.25", 2.0, "20 s", "1,000", "10.0×", "45.3×")
    assert " | ".join(map(str, (*numbers, "20.0 s (10×)"))) in page
    assert "Not every row" not in page

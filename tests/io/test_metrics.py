"""The metrics file."""

import pytest

from ncelm.errors import NcelmError
from ncelm.io.metrics import Metrics


def test_append_truncate_read(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    assert (metrics.size, metrics.read()) == (0, [])
    metrics.append({"epoch": 1})
    size = metrics.size
    metrics.append({"epoch": 2})
    assert [record["epoch"] for record in metrics.read()] == [1, 2]
    metrics.truncate(size)
    assert metrics.read() == [{"epoch": 1}]
    metrics.truncate(size, metrics.digest())
    with pytest.raises(NcelmError, match="is damaged"):
        metrics.truncate(size, Metrics(tmp_path / "other").digest())
    with pytest.raises(NcelmError, match="missing or truncated"):
        metrics.truncate(size + 1)
    metrics.truncate(0)
    assert metrics.read() == []


def test_damaged(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"epoch": 1}\n{"epoch"')
    with pytest.raises(NcelmError, match="is damaged: every line of it should be a JSON object"):
        Metrics(tmp_path / "metrics.jsonl").read()
    for content in (b"5\n", b"null\n", b'["diverged"]\n', b"[" * 100_000, b"NaN\n", b"\xff\n"):
        (tmp_path / "metrics.jsonl").write_bytes(content)
        with pytest.raises(NcelmError, match="is damaged"):
            Metrics(tmp_path / "metrics.jsonl").read()
    with pytest.raises(ValueError, match="JSON"):
        Metrics(tmp_path / "metrics.jsonl").append({"loss": float("nan")})

"""Counters in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class Metrics:
    """Requests by path and status, their times, and batches. Paths are those of the service: memory is bounded."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: dict[str, list[int]] = {}
        self.total_seconds: Counter[str] = Counter()
        self.words = 0
        self.running = 0

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests[path, status] += 1
        counts = self.seconds.setdefault(path, [0] * (len(BUCKETS) + 1))
        counts[bisect_left(BUCKETS, seconds)] += 1
        self.total_seconds[path] += seconds  # type: ignore[assignment]  # a sum of floats

    def text(self, batches: int, jobs: int, waiting: int) -> str:
        """Return all metrics."""
        lines = ["# HELP ncelm_requests_total Requests by path and status.", "# TYPE ncelm_requests_total counter"]
        lines += [
            f'ncelm_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        lines += [
            "# HELP ncelm_request_seconds Time from the first byte of a request to its response.",
            "# TYPE ncelm_request_seconds histogram",
        ]
        for path, counts in sorted(self.seconds.items()):
            total = 0
            for limit, count in zip((*BUCKETS, "+Inf"), counts, strict=True):
                total += count
                lines.append(f'ncelm_request_seconds_bucket{{path="{path}",le="{limit}"}} {total}')
            lines.append(f'ncelm_request_seconds_sum{{path="{path}"}} {self.total_seconds[path]:.6f}')
            lines.append(f'ncelm_request_seconds_count{{path="{path}"}} {total}')
        for name, kind, about, value in (
            ("ncelm_words_total", "counter", "Words that were scored or generated.", self.words),
            ("ncelm_running_requests", "gauge", "Requests that are being answered.", self.running),
            ("ncelm_waiting_jobs", "gauge", "Jobs that wait for the thread of the models.", waiting),
            ("ncelm_batches_total", "counter", "Calls of a model.", batches),
            ("ncelm_batched_jobs_total", "counter", "Jobs that these calls have computed.", jobs),
        ):
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"

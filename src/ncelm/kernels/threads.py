"""A team of threads that enter one compiled kernel together."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import numpy as np

from ncelm.arguments import check_int
from ncelm.io.machine import available_cores
from ncelm.kernels.records import SYNC_STRIDE


def check_threads(threads: object) -> int | None:
    """Return a number of threads, or None for all cores."""
    return None if threads is None else check_int("threads", threads, 1, 1024)


class Team:
    """Runs kernels of the form kernel(thread, threads, sync, …) on all its threads at once.

    While a team is open, BLAS stays on the thread that calls it: the kernels share out the work themselves, in
    blocks that do not depend on the number of threads.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = check_threads(threads) or available_cores()

    def __enter__(self) -> Self:
        # imported here: they take longer to import than commands that run no kernel may take
        import scipy.linalg.cython_blas  # noqa: F401  (the BLAS must be loaded before its threads can be limited)
        from threadpoolctl import threadpool_limits

        self._limits = threadpool_limits(limits=1, user_api="blas")
        self._pool = ThreadPoolExecutor(self.threads) if self.threads > 1 else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After Ctrl-C a thread may still be compiling, which takes seconds.
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if self._pool:
            self._pool.shutdown(wait=not interrupted, cancel_futures=interrupted)
        self._limits.restore_original_limits()

    def run(self, kernel: Callable[..., None], phases: int, *arguments: Any) -> None:
        """Enter the kernel with every thread and return when all are through."""
        if self._pool is None:
            self.run_alone(kernel, phases, *arguments)
            return
        sync = np.zeros(phases * SYNC_STRIDE, np.int64)
        futures = [self._pool.submit(kernel, t, self.threads, sync, *arguments) for t in range(self.threads)]
        for future in futures:
            future.result()

    def run_alone(self, kernel: Callable[..., None], phases: int, *arguments: Any) -> None:
        """Enter the kernel with the calling thread only: for work that takes less time than waiting for a thread."""
        kernel(0, 1, np.zeros(phases * SYNC_STRIDE, np.int64), *arguments)

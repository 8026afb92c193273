"""Worker processes.

loky does not import the user's script in the workers, as multiprocessing does: scripts need no main guard.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ncelm.errors import NcelmError
from ncelm.io import signals

if TYPE_CHECKING:
    from concurrent.futures import Future

PARENT_CHECK_SECONDS = 1.0  # between two tests of a worker process whether its parent is running
WORKER_ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",  # a file signal.py in the current folder does not replace the module of the standard library
    "TOKENIZERS_PARALLELISM": "false",  # one thread for each process
    "PYTHONWARNINGS": "ignore",  # loky's resource tracker: semaphores that it removes after this process was killed
    "LOKY_MAX_MEMORY_LEAK_SIZE": "1e18",  # a unit with many words is not a memory leak
}


@contextmanager
def worker_pool(workers: int, start: Callable[..., None], arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Yield an executor of this number of processes, each initialized by `start(*arguments)`; they end with the block.

    Yield None if this system cannot start worker processes. Read the result of a future with `result_of`.
    """
    from concurrent.futures.process import BrokenProcessPool

    executor = None
    if sys.stdout is not None and sys.stderr is not None:  # open; loky flushes both
        executor = _executor(workers, start, arguments)
    try:
        yield executor
    except BrokenProcessPool as error:
        codes = dict(re.findall(r"(\w+)\((-?\d+)\)", str(error)))  # the message of loky has {SIGKILL(-9), EXIT(1)}
        reason = ", ".join(name if name.startswith("SIG") else f"exit code {code}" for name, code in codes.items())
        raise NcelmError(
            f"a worker process was killed or stopped ({reason or 'unknown reason'}), perhaps for lack of memory: "
            "try again with `workers` 1"
        ) from error
    finally:  # after Ctrl-C too
        _shut_down(executor)


def result_of(future: "Future[Any]") -> Any:
    """Return the result of a worker process. An error of it that is no `NcelmError` becomes one."""
    from concurrent.futures.process import BrokenProcessPool

    try:
        return future.result()
    except (NcelmError, BrokenProcessPool):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise NcelmError(f"a worker process stopped ({reason}): try again with `workers` 1") from error


def _executor(workers: int, start: Callable[..., None], arguments: tuple[Any, ...]) -> Any:
    """Return an executor whose processes have been started; None if that is not possible."""
    executor: Any = None
    try:
        with _starting_processes():
            from loky import ProcessPoolExecutor

            executor = ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(os.getpid(), start, arguments))
            executor.submit(int)  # starts the processes
        return executor
    # no semaphores, or too many processes or files; where a pipe cannot be opened, loky raises UnboundLocalError
    except (ImportError, NotImplementedError, OSError, UnboundLocalError):
        _shut_down(executor)
        return None
    except BaseException:  # Ctrl-C
        _shut_down(executor)
        raise


def _shut_down(executor: Any) -> None:
    """End the processes of an executor, if there is one."""
    if executor is not None:
        executor.shutdown(kill_workers=True)


@contextmanager
def _starting_processes() -> Iterator[None]:
    """Start processes in the block, with WORKER_ENVIRONMENT. They ignore Ctrl-C, which this process handles."""
    if os.name == "posix":
        from multiprocessing import resource_tracker

        # The tracker of the standard library, which loky would start. It may serve others: it keeps the environment.
        resource_tracker.ensure_running()
    environment = WORKER_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    previous = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        with _signals_deferred():
            yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Handle Ctrl-C or SIGTERM during the block after the block; processes that the block starts do not receive SIGINT.

    loky leaves processes behind if KeyboardInterrupt is raised while it starts them. To block the signal is not enough:
    other threads of this process, such as those of BLAS, receive it.
    """
    mask: Any = None
    with signals.deferred() as request:
        if hasattr(signal, "pthread_sigmask"):  # not on Windows
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by new processes
        try:
            yield
        finally:
            if mask is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if request.number is not None:
        signal.raise_signal(request.number)


def _start_worker(parent: int, start: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Initialize a worker process of the process `parent`."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # the output of libraries, and of Python if the process crashes
        os.dup2(null, descriptor)
    for number in signals.SIGNALS:  # sent to all processes of a group; the parent ends its workers
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    start(*arguments)


def _exit_with_parent(parent: int) -> None:
    """End this process when the process `parent` has ended: it was killed."""
    import psutil

    while os.getppid() == parent and psutil.pid_exists(parent):  # on Windows the first is always true
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)

"""PyTorch uses one thread: tensors are small, and engines change the number of threads of the process."""

import pytest


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Reset the number of threads before each test."""
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")
    torch.set_num_threads(1)

# `make demo` and `make test` are all the set-up there is: both create .venv first.
PYTHON ?= python3
BIN := .venv/bin

TORCH := torch==2.13.0

.PHONY: env torch demo test lint bench clean

env: .venv/ready
torch: .venv/torch-ready

# pip and the packages it installs, into a folder of our own; again when the list of packages has changed
.venv/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ncelm needs Python 3.11 or newer: make PYTHON=python3.12 env")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[plots,dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[kenlm]' >/dev/null 2>&1 \
		|| echo "kenlm could not be built (it needs a C++ compiler): tests against it will be skipped"
	@touch .venv/ready

# PyTorch, which is an extra: the build without a GPU's gigabytes, where the index that has it can be reached
.venv/torch-ready: .venv/ready
	@$(BIN)/python -c 'import torch' 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 10 \
			--extra-index-url https://download.pytorch.org/whl/cpu $(TORCH) \
		|| echo "PyTorch could not be installed: tests of ncelm.torch will be skipped"
	@touch .venv/torch-ready

demo: env
	rm -rf demo
	$(BIN)/ncelm demo --out demo

test: env torch
	$(BIN)/python -m pytest

lint: env torch
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# STORE=folder: a token store of the text to time on; without it, the demo's text
bench: env torch
	@test -n "$(STORE)" || test -d demo/store || $(MAKE) demo
	$(BIN)/python benchmarks/baselines.py $(or $(STORE),demo/store)

clean:
	rm -rf .venv demo

# `make demo` and `make test` need no other set-up: they create .venv and install what they need.
#
#   make env       install ncelm and its dependencies, to run it
#   make dev       the same for developers: tests, linters, KenLM and PyTorch if they can be installed
#   make LOCKED=1  with any target: the versions of requirements-dev.txt instead of the newest ones
PYTHON ?= python3
BIN := .venv/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(LOCKED),--constraint requirements-dev.txt)

TORCH := torch==2.13.0
# processes among which `make test` distributes the test files; JOBS=0 runs them one after another
JOBS ?= 2

# two pips at once would damage .venv
.NOTPARALLEL:
.PHONY: env dev torch kenlm demo docs quick test coverage lint format lock bench attack clean

env: .venv/run-ready
dev: .venv/dev-ready kenlm torch

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ncelm needs Python 3.11 or newer: make PYTHON=python3.12 env")'
	$(PYTHON) -m venv .venv

# installed again when the list of packages has changed
.venv/run-ready: pyproject.toml | .venv/bin/python
	$(PIP) --editable .
	@touch $@

.venv/dev-ready: pyproject.toml | .venv/bin/python
	$(PIP) --editable '.[plots,dev]'
	@touch $@ .venv/run-ready

# Optional packages. A failure is reported each time and does not stop the tests, which skip what needs the package.
kenlm: .venv/dev-ready
	@$(BIN)/python -c 'import kenlm' 2>/dev/null \
		|| $(PIP) --retries 0 --timeout 10 --editable '.[kenlm]' >.venv/kenlm.log 2>&1 \
		|| echo "KenLM could not be installed (it needs a C++ compiler; see .venv/kenlm.log): tests against it will be skipped" >&2

# the build of PyTorch for CPUs, if its index can be reached: it is much smaller
torch: .venv/run-ready
	@$(BIN)/python -c 'import torch' 2>/dev/null \
		|| $(PIP) --retries 0 --timeout 10 --extra-index-url https://download.pytorch.org/whl/cpu $(TORCH) \
		|| echo "PyTorch could not be installed: tests of ncelm.torch will be skipped, and mypy will miss it" >&2

demo: env
	rm -rf demo
	$(BIN)/ncelm demo --out demo

# the documentation site, in build/site. Broken links are errors.
docs: .venv/docs-ready
	PYTHONPATH=tools $(BIN)/zensical build --clean --strict

.venv/docs-ready: pyproject.toml | .venv/bin/python
	$(PIP) --editable '.[docs]'
	@touch $@

# without slow tests: within a minute once the kernels are compiled
quick: dev
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow"

# everything, doctests included. Tests that start several processes of their own run alone, after the others.
test: dev
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not serial"
	$(BIN)/python -m pytest -m serial

coverage: dev
	$(BIN)/coverage erase
	$(BIN)/python -m pytest --cov --cov-report= -n $(JOBS) --dist loadfile -m "not serial"
	$(BIN)/python -m pytest --cov --cov-report= --cov-append -m serial
	$(BIN)/coverage report

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the newest versions of all packages that developers need, for all Pythons and platforms that we support
lock: dev
	$(PIP) uv
	$(BIN)/uv pip compile pyproject.toml --extra plots --extra dev --extra docs --universal --python-version 3.11 --upgrade \
		--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' --quiet --output-file requirements-dev.txt

# STORE=folder: a token store of the text to time on; without it, the text of the demo
bench: dev
	@test -n "$(STORE)" || test -d demo/store || $(MAKE) demo
	$(BIN)/python benchmarks/baselines.py $(or $(STORE),demo/store)

# damaged files, killed processes, full disks: MINUTES=30 and SEED=0 by default
attack: dev
	$(BIN)/python -m tests.hostile --minutes $(or $(MINUTES),30) --seed $(or $(SEED),0) --report docs/results/attack.md

clean:
	rm -rf .venv .cache build/site demo htmlcov .coverage .coverage.* .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis

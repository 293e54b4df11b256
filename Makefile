# Everything here first makes .venv if it is not there (tools/make_venv.py; some minutes, once).
# PYTHON=/path/to/python3.10 makes it with that one; without it, a python3.11 or python3.10 is looked for.

PYTHON ?=
VENV_PYTHON := .venv/bin/python
PYTEST := $(VENV_PYTHON) -m pytest

# Modules from elsewhere would come before those of .venv.
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help venv demo test unit integration lint clean

help:
	@echo 'make demo          train on digits while workers come and go: 2, 4, 1, 3; ends with a picture'
	@echo 'make test          lint, unit tests, then integration tests with real horovodrun jobs'
	@echo 'make unit          unit tests only'
	@echo 'make integration   integration tests only'
	@echo 'make lint          ruff'
	@echo 'make venv          only make .venv'
	@echo 'make clean         remove .venv, the compiled Horovod and all caches'
	@echo 'PYTHON=/path/to/python3.10 chooses the Python for .venv (3.10 or 3.11)'

# Without PYTHON any Python 3 will do to start with: the script looks for one that MXNet works with.
venv:
	@if [ -n "$(PYTHON)" ]; then \
	    "$(PYTHON)" -c '' 2>/dev/null || { echo 'set-up failed: PYTHON=$(PYTHON) cannot be run: give the path of a Python 3.10 or 3.11.' >&2; exit 1; }; \
	    exec "$(PYTHON)" tools/make_venv.py --this-python; \
	fi; \
	for python in python3 python3.11 python3.10; do \
	    if $$python -c '' 2>/dev/null; then exec $$python tools/make_venv.py; fi; \
	done; \
	echo 'set-up failed: no Python 3 on PATH: install Python 3.10 or 3.11, or give its path: make PYTHON=/path/to/python3.11.' >&2; exit 1

demo: venv
	$(VENV_PYTHON) -m gluon_examples.classification.demo

test: lint
	$(PYTEST) tests/unit tests/integration

unit: venv
	$(PYTEST) tests/unit

integration: venv
	$(PYTEST) tests/integration

lint: venv
	$(VENV_PYTHON) -m ruff check .

clean:
	rm -rf .venv .venv-setup.log .venv-setup.lock .venv-wheels build dist *.egg-info
	rm -rf .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Needs make and Python 3.11 or newer with pip; everything else is put into .venv by the first target that runs.
# make PYTHON=/path/to/python3 chooses the interpreter; make test PYTEST="-k beam -x" passes options to pytest.

CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
BIN := .venv/bin
PYTEST ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types format clean

help:
	@echo "make demo    train, decode and compare on a small task (sets everything up first)"
	@echo "make test    ruff, mypy, then pytest with the doctests (sets everything up first)"
	@echo "make lint    ruff alone"
	@echo "make types   mypy alone"
	@echo "make format  let ruff mend and format what it can"
	@echo "make setup   only make .venv"
	@echo "make clean   remove .venv and everything generated"

setup:
	@for python in $(CANDIDATES); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    exec "$$python" scripts/make_environment.py; \
	  fi; \
	done; \
	echo "seqwise needs Python 3.11 or newer, and none of these is: $(CANDIDATES); try make PYTHON=/path/to/python3" >&2; \
	exit 2

demo: setup
	$(BIN)/seqwise reproduce demo

test: lint types
	$(BIN)/python -m pytest $(PYTEST)

lint: setup
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The lock file stays: a make that waits on it must not be left waiting on a file that is gone.
clean:
	rm -f .venv/seqwise-complete.json
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

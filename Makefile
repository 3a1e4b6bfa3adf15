# Needs make and Python 3.11 or newer with pip; everything else is put into .venv by the first target that runs.
# make setup LOCKED=1 installs the exact versions of scripts/constraints.txt;
# make PYTHON=/path/to/python3 chooses the interpreter; make test PYTEST="-k beam -x" passes options to pytest.

CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
BIN := .venv/bin
PYTEST ?=
# In the order of the folders: sorted by their number of tests, the files with the longest ones would come last.
PARALLEL := --numprocesses auto --dist loadfile --no-loadscope-reorder

# Modules and tests are compiled once, and not anew by every process that a test starts.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-slow test-machines test-oldest mutants reliability soak lock audit lint types format docs figures dist clean

help:
	@echo "make demo           train, decode and compare on a small task (sets everything up first)"
	@echo "make test           run ruff, mypy, then pytest with the doctests (sets everything up first)"
	@echo "make test-all       make test, then the tests of more than two seconds each, as continuous integration does"
	@echo "make test-slow      the tests of minutes each"
	@echo "make test-machines  make test on other CPUs: levels of ATen, oneDNN and MKL, one to four threads"
	@echo "make test-oldest    make test with the oldest declared versions, in build/oldest; needs a package index"
	@echo "make reliability    run all reliability tests and write docs/reliability.md"
	@echo "make mutants        test whether the tests notice 600 small changes to search, objectives and sampling; takes hours"
	@echo "make soak           train, search and sample for ten minutes each; memory and speed must not drift"
	@echo "make audit          look for known vulnerabilities of the packages in scripts/constraints.txt"
	@echo "make lock           write the installed versions to scripts/constraints.txt"
	@echo "make lint           run ruff only"
	@echo "make types          run mypy only"
	@echo "make format         fix and format the code with ruff"
	@echo "make docs           build the site in build/site; fails on broken links, missing docstrings and failing examples"
	@echo "make figures        draw the figures of the pages and write the pages made from results/"
	@echo "make dist           build wheel and sdist in dist/, checked as a package index checks them"
	@echo "make setup          create .venv"
	@echo "make clean          remove .venv and everything generated"

setup:
	@for python in $(CANDIDATES); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    exec "$$python" scripts/make_environment.py; \
	  fi; \
	done; \
	echo "seqwise needs Python 3.11 or newer, and none of these is: $(CANDIDATES); try make PYTHON=/path/to/python3" >&2; \
	exit 2

demo: setup
	$(BIN)/python -m reproductions demo

test: lint types
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not thorough" $(PYTEST)

test-all: test
	$(BIN)/python -m pytest $(PARALLEL) -m "thorough and not slow" $(PYTEST)

test-slow: setup
	$(BIN)/python -m pytest -m slow $(PYTEST)

# ATen's level, oneDNN's, MKL's, threads. The last one is what the machine has.
MACHINES := default:SSE41:SSE4_2:1 avx2:AVX2:AVX2:2 avx2:AVX2:AVX2:3 ::COMPATIBLE:3 :::4

test-machines: setup
	@for machine in $(MACHINES); do \
	  aten=$${machine%%:*} rest=$${machine#*:}; onednn=$${rest%%:*} rest=$${rest#*:}; mkl=$${rest%%:*} threads=$${rest#*:}; \
	  echo "ATEN_CPU_CAPABILITY=$$aten ONEDNN_MAX_CPU_ISA=$$onednn MKL=$$mkl OMP_NUM_THREADS=$$threads"; \
	  env OMP_NUM_THREADS=$$threads $${aten:+ATEN_CPU_CAPABILITY=$$aten} $${onednn:+ONEDNN_MAX_CPU_ISA=$$onednn} \
	    $${mkl:+$$([ "$$mkl" = COMPATIBLE ] && echo MKL_CBWR || echo MKL_ENABLE_INSTRUCTIONS)=$$mkl} \
	    $(BIN)/python -m pytest $(PARALLEL) -m "not slow and not thorough" $(PYTEST) || exit 1; \
	done

OLDEST := build/oldest
test-oldest: setup
	$(BIN)/python -m venv --clear $(OLDEST)
	$(BIN)/python scripts/oldest_versions.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --requirement $(OLDEST)/constraints.txt --editable '.[test]'
	$(OLDEST)/bin/python -m pytest $(PARALLEL) -m "not slow and not thorough" $(PYTEST)

reliability: setup
	$(BIN)/python -m pytest -m "slow or not slow" --write-figures results/reliability.json tests/reliability $(PYTEST)
	$(BIN)/python -m scripts.make_reliability_page

mutants: setup
	@$(BIN)/python -c 'import mutmut' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[mutants]'
	OMP_NUM_THREADS=1 nice -n 10 $(BIN)/python scripts/run_mutants.py
	$(BIN)/python -m scripts.make_mutants_page

soak: setup
	SEQWISE_SOAK_SECONDS=600 $(BIN)/python -m pytest -m slow -k do_not_drift --write-figures results/soak.json \
	  tests/reliability/test_load.py $(PYTEST)
	$(BIN)/python -m scripts.make_reliability_page

lock: setup
	$(BIN)/python scripts/make_constraints.py

audit: setup
	@$(BIN)/python -c 'import pip_audit' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[audit]' \
	  || { echo "seqwise audit: skipped: pip-audit cannot be installed from here"; exit 0; }; \
	$(BIN)/python scripts/audit_dependencies.py

lint: setup
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

PAGE_TESTS := tests/docs/test_documentation.py tests/docs/test_site.py tests/docs/test_readme.py tests/docs/test_sampling_page.py \
  tests/docs/test_hugging_face_page.py

docs: setup
	@$(BIN)/python -c 'import furo, myst_parser, sphinx' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m pytest --quiet $(PAGE_TESTS) src/seqwise
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs build/site

figures: setup
	$(BIN)/python -m reproductions.make_figures
	$(BIN)/python -m reproductions.make_pages

dist: setup
	@$(BIN)/python -c 'import build, twine' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[release]'
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

# The lock file stays: a make that waits on it must not be left waiting on a file that is gone.
clean:
	rm -f .venv/seqwise-complete.json
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist docs/api
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

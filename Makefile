# Every target makes the environment it needs: on a fresh clone any of them can be the first and only command.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.complete
NEEDED := Fencepost needs Python 3.11 or newer. Name one: make PYTHON=/path/to/python3

.PHONY: help env demo test lint format oracle bench docs clean

help:
	@echo 'make env     the environment in $(VENV) (PYTHON=$(PYTHON) makes it)'
	@echo 'make demo    a pipeline over real data that is killed again and again, and what came out of it'
	@echo 'make test    every check: format, lint, types, architecture, tests'
	@echo 'make lint    the checks that run nothing; make format mends what it can'
	@echo 'make oracle  what Apache Kafka answered, and what Fencepost answers; FILES="..." plays other recordings'
	@echo 'make bench   measurements: against peers, and how fast the simulator is'
	@echo 'make docs    what is generated from the code: tables, diagrams, the blocking client'
	@echo 'make clean   removes the environment and every cache'

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt tools/environment.py
	@command -v $(PYTHON) >/dev/null || { echo 'There is no $(PYTHON) here: $(NEEDED)' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "This Python is too old: $(NEEDED)")'
	@$(PYTHON) tools/environment.py $(VENV)
	@touch $@

demo: env
	$(BIN)/fencepost demo $(DEMO)

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# By file, so that tests which share something costly, as one Spark session, stay in one process.
test: lint
	$(BIN)/pytest -n 2 --dist loadfile --durations 10 $(TESTS)

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# FILES: recordings to play instead of those in tests/oracle, of the same form.
oracle: env
	$(BIN)/python -m tests.oracle $(FILES)

bench: env
	$(BIN)/python -m benchmarks

docs: env
	$(BIN)/python -m tools.unasync
	$(BIN)/python -m tools.docs

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

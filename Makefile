# make demo, make test: each sets up .venv when it is missing or out of date, then runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo test lint format bench-memory clean

help:
	@echo 'make demo          partition a real graph, train on 1 and on 4 processes, compare'
	@echo 'make test          run the tests'
	@echo 'make lint          ruff and mypy'
	@echo 'make format        format the code'
	@echo 'make bench-memory  measure peak memory against the number of parts'
	@echo 'make clean         remove what the other targets made'

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pyg_sar

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-memory: $(STAMP)
	$(BIN)/python benchmarks/memory/main.py

clean:
	rm -rf $(VENV) .venv-accel .pytest_cache .ruff_cache .mypy_cache build *.egg-info demo_output

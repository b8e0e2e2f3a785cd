# `make discover` and `make test` do everything, set-up included, on a machine with Python 3.11
# or later, pip, venv and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: install test lint types rooms tests format discover clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	touch $@

test: lint types rooms tests

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

rooms: install
	$(BIN)/lint-imports --no-cache

# As many workers as processors, each with one thread.
tests: install
	$(BIN)/python -m pytest -n auto --durations=15

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

discover: install
	$(BIN)/python -m launch.main_job

clean:
	rm -rf $(VENV) *.egg-info build dist .pytest_cache .ruff_cache

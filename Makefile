# `make discover` and `make test` do everything, set-up included, on a machine with Python 3.11
# or later, pip, venv and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# `make install EXTRAS=cuda` (or tpu): JAX for accelerators, too.
EXTRAS :=
INSTALLED := $(VENV)/.installed$(EXTRAS:%=-%)

.PHONY: install test lint types rooms tests chaos format discover clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev$(EXTRAS:%=,%)]'
	touch $@

test: lint types rooms tests

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

rooms: install
	$(BIN)/lint-imports --no-cache

# As many workers as processors, each with one thread, and whole modules (tests/conftest.py).
tests: install
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=15

# Breaks running commands in every way that they promise to survive. Up to half an hour.
chaos: install
	$(BIN)/python -m tests.chaos

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The main job on a laptop's CPU: discover a rule, export it, and judge it on tasks that it never
# saw, ours and a third party's. Started again, it goes on where it was.
RUN := runs/grid57
discover: install
	$(BIN)/python -m launch.discover --workdir=$(RUN)/discovery --config=launch/configs/grid57_laptop.py
	$(BIN)/python -m launch.export --workdir=$(RUN)/discovery --output=$(RUN)/rule.npz
	$(BIN)/python -m launch.evaluate --rule=$(RUN)/rule.npz --suite=grid_heldout --workdir=$(RUN)/grid_heldout
	$(BIN)/python -m launch.evaluate --rule=$(RUN)/rule.npz --suite=gymnax/CartPole-v1 --workdir=$(RUN)/cartpole
	$(BIN)/python -m launch.export --workdir=$(RUN)/discovery --output=$(RUN)/rule.npz --evaluations=$(RUN)/grid_heldout,$(RUN)/cartpole
	$(BIN)/python -m launch.report --runs=$(RUN)/grid_heldout,$(RUN)/cartpole,$(RUN)/discovery --output=$(RUN)/report
	@echo
	@echo "The report:             $(RUN)/report/index.html"
	@echo "The rule, and its card: $(RUN)/rule.npz, rule.md"
	@echo "Held-out tasks:         $(RUN)/grid_heldout/table.csv, curves.png, aggregate.png, results.json"
	@echo "CartPole (gymnax):      $(RUN)/cartpole/table.csv, curves.png, aggregate.png, results.json"
	@echo "The discovery's curves: $(RUN)/discovery/curves.png, metrics.jsonl, tensorboard/"

clean:
	rm -rf $(VENV) *.egg-info build dist .pytest_cache .ruff_cache

# `make discover` and `make test` do everything, set-up included, on a machine with Python 3.11
# or later, pip, venv and make.

# The environment's Python, for example `make test PYTHON=python3.13` in a new checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# `make install EXTRAS=cuda` (or tpu): JAX for accelerators, too.
EXTRAS :=
INSTALLED := $(VENV)/.installed$(EXTRAS:%=-%)

NEWEST := .venv-newest

.PHONY: install pins test lint types rooms tests test-slow test-learning all-tests newest \
    tests-newest test-newest chaos fuzz docs format discover clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev$(EXTRAS:%=,%)]'
	touch $@

# Versions that hold together, of everything, for every Python that is supported.
pins: install
	$(BIN)/python -m pip install uv
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --fork-strategy fewest \
	    --extra dev --extra cuda --extra tpu --no-annotate --no-header --output-file constraints.txt

test: lint types rooms tests

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

rooms: install
	$(BIN)/lint-imports --no-cache

# As many workers as processors, each with one thread, and whole modules (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=15
# Also of the newest releases.
FAST := -m "not slow and not thorough and not learning"

tests: install
	$(PYTEST) $(FAST)

# What takes a minute or more by its nature: several processes, many devices, kills, sweeps.
test-slow: install
	$(PYTEST) -m "slow or thorough"

# What CI runs: fast and slow tests in one run, which shares what they compile and the fixtures.
# It leaves those that are marked `thorough` to test-slow.
all-tests: install
	$(PYTEST) -m "not thorough and not learning"

# Whether agents learn, where that takes minutes each.
test-learning: install
	$(PYTEST) -m learning

# The newest Python of this machine, and the newest release of every package: golden vectors, rule
# files and checkpoints, a short discovery, export and evaluation, and the examples, not what our
# own code refuses, which no release of another package changes. Made anew each time, as releases
# come: their warnings are shown and are no errors here. gymnax works with the newest
# JAX, which its metadata do not admit.
test-newest: newest
	$(MAKE) tests-newest

newest:
	python=$$($(PYTHON) tests/newest_python.py) && $$python -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --editable '.[platform,hub]' \
	    beartype equinox flax gymnasium keras pytest pytest-xdist seaborn
	$(NEWEST)/bin/python -m pip install --no-deps 'gymnax>=1.0'

tests-newest:
	$(NEWEST)/bin/python -m pytest -n auto --dist loadfile -W default $(FAST) \
	    tests/launch/test_discover.py tests/evaluation/test_evaluate.py tests/test_examples.py \
	    tests/meta/test_golden.py tests/disco/test_golden.py tests/agents/dreamer/test_golden.py \
	    tests/disco/test_package.py tests/disco/test_rule_files.py tests/test_zoo.py \
	    tests/disco_common/test_checkpoints.py

# Breaks running commands in every way that they promise to survive. Up to half an hour.
chaos: install
	$(BIN)/python -m tests.chaos

# Damages rule files, run files and checkpoints, puts pipes and devices in their place, has them
# read, and gives flags hostile values. A minute, with a seed:
# `make fuzz SECONDS=600 SEED=3`.
SECONDS := 60
SEED := 0
fuzz: install
	$(BIN)/python -m tests.fuzz --seconds=$(SECONDS) --seed=$(SEED)

# The documentation's site, into docs/_build/html: notebooks executed, links within it followed,
# snippets tried (doctest); warnings are errors. It needs no network. A test of `make test-slow`
# builds it, too. Names of other packages become links with DISCO_DOCS_INTERSPHINX=1.
SPHINX := $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky -d docs/_build/doctrees
docs: install
	rm -rf docs/_build/html docs/_build/doctrees
	$(SPHINX) -b html docs docs/_build/html
	$(SPHINX) -b doctest docs docs/_build/doctest
	@echo "The site: docs/_build/html/index.html"

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The main job on a laptop's CPU: discover a rule, export it, and judge it on tasks that it never
# saw: every third of `grid_heldout`'s tasks with reference scores, and CartPole, which nobody here
# wrote. Started again, it goes on where it was.
RUN := runs/grid57
GRIDS := tiny_dense_fixed large_dense_fixed near_or_far zigzag moving_goods catch_8x8 chain_short \
    chain_noisy_long
comma := ,
empty :=
HELD_OUT := $(subst $(empty) ,$(comma),$(GRIDS:%=grid_heldout/%) gymnax/CartPole-v1)
discover: install
	$(BIN)/python -m launch.discover --workdir=$(RUN)/discovery --config=launch/configs/grid57_laptop.py
	$(BIN)/python -m launch.export --workdir=$(RUN)/discovery --output=$(RUN)/rule.npz
	$(BIN)/python -m launch.evaluate --rule=$(RUN)/rule.npz --suite=$(HELD_OUT) --config.seeds=3 --workdir=$(RUN)/held_out
	$(BIN)/python -m launch.export --workdir=$(RUN)/discovery --output=$(RUN)/rule.npz --evaluations=$(RUN)/held_out
	$(BIN)/python -m launch.report --runs=$(RUN)/held_out,$(RUN)/discovery --output=$(RUN)/report
	@echo
	@echo "The report:             $(RUN)/report/index.html"
	@echo "The rule, and its card: $(RUN)/rule.npz, rule.md"
	@echo "Held-out tasks:         $(RUN)/held_out/scores.csv, curves.png, aggregate.png, results.json"
	@echo "The discovery's curves: $(RUN)/discovery/curves.png, metrics.jsonl, tensorboard/"

clean:
	rm -rf $(VENV) $(NEWEST) *.egg-info build dist docs/_build .pytest_cache .ruff_cache .jax_cache

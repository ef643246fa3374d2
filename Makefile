# Every target works in a fresh clone: the first one to need the environment makes it.
# `make check` is what continuous integration runs, word for word.

# jax 0.11 and newer, with which training is faster, need Python 3.12
PYTHON ?= $(firstword $(foreach each,python3.13 python3.12,$(shell $(each) -c 'import ensurepip; print("$(each)")' 2>/dev/null)) python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPILERS := $(VENV)/.compilers
ADAPTERS := .venv-adapters
OLDEST := .venv-oldest
NEWEST := .venv-newest
OLDEST_PYTHON ?= python3.11
NEWEST_PYTHON ?= python3.13
LIBRARIES := brax,craftax,jumanji,navix,pgx,playground,xminigrid
WITH_LIBRARIES = $(filter --large --accelerator,$(ARGS))

.DEFAULT_GOAL := help
.PHONY: help run test test-all slow adapters test-versions test-oldest test-newest check format docs site pictures bench bench-peers bench-accelerator results clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(INSTALLED) ## train on CartPole; ARGS="key=value ..." overrides the configuration
	$(BIN)/python -m jaxppo.ff_ppo env=cartpole $(ARGS)

test: $(INSTALLED) ## the tests that take a few minutes together
	$(BIN)/python -m pytest -n auto -m 'not slow and not long'

test-all: $(INSTALLED) ## all tests but the learning runs of minutes, as continuous integration runs them
	$(BIN)/python -m pytest -n auto

slow: $(INSTALLED) ## the learning runs
	$(BIN)/python -m pytest -m slow -n auto

adapters: $(ADAPTERS)/.installed ## the contract of other libraries' environments, in .venv-adapters
	$(ADAPTERS)/bin/python -m pytest -m slow tests/envs/test_adapters.py

test-versions: test-oldest test-newest ## `make test` with the oldest and the newest versions that pyproject.toml allows; fails if a plain PPO is faster

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -n auto -m 'not slow and not long' $(ARGS)
	$(OLDEST)/bin/python -m benchmarks.peers S M L --peers plain --rounds 5 --least 0.9

test-newest: $(NEWEST)/.installed
	$(NEWEST)/bin/python -m pytest -n auto -m 'not slow and not long' $(ARGS)
	$(NEWEST)/bin/python -m benchmarks.peers S M L --peers plain --rounds 5 --least 0.9

check: $(COMPILERS) ## format, lint, types and all tests, as continuous integration runs them
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto

format: $(INSTALLED) ## rewrite the source in the house format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(INSTALLED) ## make docs/settings.md anew from the settings themselves
	$(BIN)/python docs/settings.py

site: $(INSTALLED) ## build the pages as a website below build/site, and check their links
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q

pictures: $(INSTALLED) ## make the pictures of the pages anew, which takes some minutes and Chromium; ARGS="NAME ..."
	$(BIN)/python docs/pictures.py $(ARGS)

bench: $(INSTALLED) ## measure speed, sweeps, checkpoints and scaling
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.sweeps
	$(BIN)/python -m benchmarks.checkpoints
	$(BIN)/python -m benchmarks.scaling

bench-peers: $(INSTALLED) ## compare the speed with rejax, Brax, stable-baselines3 and a plain PPO
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-accelerator: $(INSTALLED) ## tests and speed on this machine's accelerator, in five minutes; ARGS="--small S" tries it
	$(BIN)/python -m benchmarks.accelerator $(ARGS)

results: $(if $(WITH_LIBRARIES),$(ADAPTERS)/.installed,$(INSTALLED)) ## run the table of results, or go on with it; ARGS="NAME ...", ARGS=--large, or ARGS=--accelerator for minutes of a GPU
	$(if $(WITH_LIBRARIES),$(ADAPTERS),$(VENV))/bin/python -m benchmarks.results $(ARGS)

clean: ## remove the environment, caches and build outputs; keep what runs wrote
	rm -rf $(VENV) $(ADAPTERS) $(OLDEST) $(NEWEST) benchmarks/peers/.venvs build dist .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "jaxppo needs Python 3.11, 3.12 or 3.13 and $(PYTHON) is none of them; name one: make PYTHON=python3.12" >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

# The compilers of accelerators, without their libraries
$(COMPILERS): $(INSTALLED)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[aot-cuda,aot-tpu]'
	@touch $@

$(ADAPTERS)/.installed: pyproject.toml constraints.txt
	test -x $(ADAPTERS)/bin/pip || $(PYTHON) -m venv --clear $(ADAPTERS)
	$(ADAPTERS)/bin/python -m pip install -q -c constraints.txt -e '.[dev,$(LIBRARIES)]'
	@touch $@

$(OLDEST)/.installed: pyproject.toml tests/lower_bounds.py
	$(OLDEST_PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python tests/lower_bounds.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install -q -c $(OLDEST)/constraints.txt -e '.[dev]'
	@touch $@

# gymnax 1.0.1 asks for jax<0.12; what we use of it also works with later ones
$(NEWEST)/.installed: pyproject.toml
	$(NEWEST_PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install -q -e '.[dev]'
	$(NEWEST)/bin/python -m pip install -q --upgrade --no-deps 'jax<0.13' 'jaxlib<0.13'
	@touch $@

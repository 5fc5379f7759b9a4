# Everything happens in one virtual environment, .venv, which the targets make for themselves.
# Another interpreter, beside the first: make PYTHON=python3.12 VENV=.venv-3.12 test. Some tests only: make test TESTS="tests/states -x".

PYTHON ?= python3
TESTS ?=
TORTURE_SECONDS ?= 150
TORTURE_CHATS ?= 400
TORTURE_SEED ?=
VENV := .venv
BIN := $(VENV)/bin
# Three at a time on two cores: some tests wait for processes that they have started. More would only get in their way.
PYTEST := $(BIN)/pytest -n 3 --dist worksteal
# Installs an extra, and a dependency group if one is named, into a virtual environment. uv does it in seconds. Where it
# cannot be had, or finds less than pip is configured to find, pip takes a minute or two: one that knows groups.
pip = $(1)/bin/python -m pip --disable-pip-version-check --quiet install
what = --editable '.[$(2)]' $(if $(3),--group $(3))
install = $(pip) uv && $(1)/bin/uv pip install --quiet --python $(1)/bin/python $(what) || \
	{ echo "uv could not install it; pip does, which takes longer ..."; $(pip) 'pip>=25.1' && $(pip) $(what); }
# A stamp per environment: installing again only when pyproject.toml has changed.
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
# The race has a virtual environment of its own: what else is installed must not slow anybody down.
VENV_BENCH := .venv-bench
INSTALLED_BENCH := $(VENV_BENCH)/.installed
BENCH_EXTRAS := client,models,postgres,service
VENV_LOWEST := .venv-lowest
INSTALLED_LOWEST := $(VENV_LOWEST)/.installed

# Hundreds of tests start processes: without compiled modules each of those would compile the library for itself.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test prove lowest steady simulate explore torture mutation lint docs docs-serve bench wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## watch a chat's whole life in the terminal: no key, no server
	@$(BIN)/turnwise demo

test: $(INSTALLED_DEV) ## run the tests: every claim once, in four to seven minutes
	@$(PYTEST) -m "not deep" $(TESTS)

prove: $(INSTALLED_DEV) ## find more faults in about twenty minutes: deep tests, and property tests with more examples
	@PROVE=1 $(PYTEST) -m "deep or hypothesis" $(TESTS)

lowest: $(INSTALLED_LOWEST) ## run the tests with the lowest version of every direct dependency
	@$(subst $(VENV),$(VENV_LOWEST),$(PYTEST)) -m "not deep" $(TESTS)

# Two loops that never rest, one for each of two cores, until the last run ends or one fails.
steady: $(INSTALLED_DEV) ## run the tests again and again on a busy machine: make steady TIMES=20
	@for core in 1 2; do sh -c 'while :; do :; done' & loops="$$loops $$!"; done; trap "kill $$loops" EXIT; \
	for run in $$(seq $(or $(TIMES),20)); do \
		echo "Run $$run"; $(PYTEST) -m "not deep" $(TESTS) || exit; \
	done

simulate: $(INSTALLED_DEV) ## live a simulated world again: make simulate SEED=11; RUNS=100 lives as many
	@$(BIN)/python -m turnwise.testing.simulation --seed $(or $(SEED),0) --runs $(or $(RUNS),1)

explore: $(INSTALLED_DEV) ## draw new examples for every property test and the fuzz: make explore TIMES=60 TESTS=tests/states
	@EXPLORE=$(or $(TIMES),15) $(BIN)/pytest -n 2 --dist worksteal -m hypothesis --timeout 7200 $(TESTS)

torture: $(INSTALLED_DEV) ## kill, freeze and cut off workers for minutes (TORTURE_SECONDS, _CHATS, _SEED)
	@TORTURE_SECONDS=$(TORTURE_SECONDS) TORTURE_CHATS=$(TORTURE_CHATS) TORTURE_SEED=$(TORTURE_SEED) \
		$(BIN)/pytest tests/acceptance/test_torture.py

mutation: $(INSTALLED_DEV) ## plant random faults, see which are caught: MUTATION="engine --count 40 --seed 7"
	@$(BIN)/python tests/mutation.py $(MUTATION)

lint: $(INSTALLED_DEV) ## check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy examples/*.py docs/stage.py
	@$(BIN)/lint-imports

docs: $(INSTALLED_DEV) ## draw the diagrams, write the TypeScript types, run the examples of the docs, build the site into build/site
	@$(BIN)/python -m turnwise.diagrams
	@$(BIN)/python clients/typescript/generate.py
	@$(BIN)/pytest tests/test_docs.py tests/docs
	@$(BIN)/python docs/stage.py
	@$(BIN)/zensical build --strict

docs-serve: $(INSTALLED_DEV) ## show the site at http://localhost:8000; run it again to see what has changed
	@$(BIN)/python docs/stage.py
	@$(BIN)/zensical serve

bench: $(if $(PEERS),$(INSTALLED_BENCH),$(INSTALLED_DEV)) ## measure; PEERS=1: beside other libraries; RACE="--only AB": a part
	@$(if $(PEERS),$(VENV_BENCH),$(VENV))/bin/python benchmarks/run.py $(RACE)

wheel: $(INSTALLED_DEV) ## build the sdist and the wheel into dist/
	@$(BIN)/python -m build --no-isolation

clean: ## remove .venv, dist and every cache
	@rm -rf $(VENV) $(VENV_BENCH) $(VENV_LOWEST) dist build .cache .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo "Installing turnwise into $(VENV) ..."
	@$(call install,$(VENV),cli)
	@touch $@

$(INSTALLED_DEV): pyproject.toml | $(BIN)/python
	@echo "Installing turnwise and its development tools into $(VENV), once ..."
	@$(call install,$(VENV),all,dev)
	@touch $(INSTALLED) $@

$(INSTALLED_BENCH): pyproject.toml | $(BIN)/python
	@echo "Installing turnwise and the libraries it races into $(VENV_BENCH), once ..."
	@$(BIN)/python -m venv $(VENV_BENCH)
	@$(call install,$(VENV_BENCH),$(BENCH_EXTRAS),bench)
	@touch $@

# Made anew: versions that are already installed and allowed would stay. Only uv can choose the lowest.
$(INSTALLED_LOWEST): pyproject.toml | $(BIN)/python
	@echo "Installing turnwise and the lowest versions of its dependencies into $(VENV_LOWEST), once ..."
	@$(BIN)/python -m venv --clear $(VENV_LOWEST)
	@$(call pip,$(VENV_LOWEST)) uv
	@$(VENV_LOWEST)/bin/uv pip install --quiet --python $(VENV_LOWEST)/bin/python --resolution lowest-direct \
		--editable '.[all]' --group dev
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "There is no $(PYTHON) here. Name a Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "turnwise needs Python 3.11 or newer, and $(PYTHON) is older: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment; Debian: apt install python3-venv"; exit 1; }

# Everything runs from .venv, which `make` builds by itself the first time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
# Writes down how long a target took, for `make numbers`.
TIMED = $(BIN)/python -m bench.numbers --time
STAMP := $(VENV)/.installed
# What may be installed: the lock file. CONSTRAINTS=requirements/lowest.txt for the oldest, CONSTRAINTS=requirements/none.txt
# for the newest that pyproject.toml allows.
CONSTRAINTS ?= requirements/dev.txt
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# uv makes the lock file and nothing else, so it has an environment of its own that only `make lock` builds.
UV := .cache/uv/bin/uv
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --all-extras --no-annotate --custom-compile-command 'make lock' pyproject.toml

# Tests start hundreds of processes: each would compile all modules again where the environment forbids to keep them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help lock release setup demo check test lint types quicktypes unit everything coverage numbers soak chaos takeover conformance interop bench docs pictures session browse format clean

help: ## list what there is to make
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: $(STAMP) ## build .venv with everything needed to work on the project

$(STAMP): pyproject.toml $(wildcard requirements/*.txt)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mcp-tasks needs Python 3.11 or newer; say make PYTHON=python3.x")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# The extra `fast` goes beside the environment, not into it: servers of the tests are served as on a stock install,
	@# and a process that is to be quicker has this folder on its PYTHONPATH.
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["fast"], sep="\n")' > $(VENV)/fast.txt
	@# Both at the same time, each on a core of its own; then all cores compile, where pip would use one. Some packages have
	@# files that are no Python of this version: whoever imports one hears of it.
	$(PIP) install --no-compile --upgrade --target $(VENV)/fast -r $(VENV)/fast.txt -c $(CONSTRAINTS) & fast=$$!; \
		$(PIP) install --no-compile -e '.[dev]' -c $(CONSTRAINTS) && wait $$fast
	-$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib $(VENV)/fast
	touch $(STAMP)

lock: $(UV) ## write requirements/ again; UPGRADE=1 for the newest of everything, UPGRADE=name for the newest of one
	$(COMPILE) --output-file requirements/dev.txt $(if $(filter 1,$(UPGRADE)),--upgrade,$(if $(UPGRADE),--upgrade-package $(UPGRADE)))
	$(COMPILE) --output-file requirements/lowest.txt --resolution lowest-direct $(if $(UPGRADE),--upgrade)

$(UV):
	$(PYTHON) -m venv .cache/uv
	.cache/uv/bin/python -m pip --quiet --disable-pip-version-check install 'uv>=0.13'

# A tag may have any signs in its name: the shell reads it from the environment, and never as a part of a command.
release: $(STAMP) ## check, build and try VERSION=x.y.z; TAG=1 to tag it as well
	test -x .cache/release/bin/python || $(PYTHON) -m venv .cache/release
	.cache/release/bin/python -m pip --quiet --disable-pip-version-check install build twine -c $(CONSTRAINTS)
	.cache/release/bin/python -m tools.release $(if $(value VERSION),"$$VERSION") $(if $(TAG),--tag)

demo: $(STAMP) ## kill a server in the middle of three tasks and watch them finish
	@$(BIN)/python examples/demo.py

check: $(STAMP) ## what is looked at after each change: lint, types of the package, unit tests, in about a minute
	@$(TIMED) check -- $(MAKE) --no-print-directory -j 3 lint quicktypes unit

test: $(STAMP) ## everything that must be green, the official conformance suite included; not interop, soak, long chaos
	@# Types beside the tests, which wait for processes now and then. If one of the two fails, the other is seen to its end.
	@$(TIMED) test -- $(MAKE) --no-print-directory -j 2 lint types everything

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	@# Shown as a whole and only if there is something to say: it may come in the middle of the tests.
	$(BIN)/basedpyright > $(VENV)/types.txt || { cat $(VENV)/types.txt; exit 1; }
	@# Every public name says its type. Found by PATH: the package that is looked at is the one of this environment.
	PATH="$(CURDIR)/$(BIN):$$PATH" basedpyright --verifytypes mcp_tasks --ignoreexternal > $(VENV)/types.txt || { cat $(VENV)/types.txt; exit 1; }

quicktypes: $(STAMP)
	@# The tests are left to `make test`: they are half of the work.
	$(BIN)/basedpyright src > $(VENV)/quicktypes.txt || { cat $(VENV)/quicktypes.txt; exit 1; }

unit: $(STAMP)
	@# Without the tests that start processes or work for long, and with a fifth of the random examples: `make test` has all.
	MCP_TASKS_TEST_TIMES=0.2 $(BIN)/python -m pytest -q -m "not slow" tests/unit tests/test_layers.py -n 2 --junitxml=$(CACHE)/unit.xml

everything: $(STAMP)
	@# Three at a time, also on two cores: most tests wait for processes. A file stays in one of them for the servers that
	@# it shares; those with few tests come when they come, because they are the long ones and would be waited for at the end.
	$(BIN)/python -m pytest -q -m "not interop" -n 3 --dist loadfile --no-loadscope-reorder --junitxml=$(CACHE)/everything.xml

coverage: $(STAMP) ## fails for a line or branch of core, runtime or protocol that no test comes to, and shows them
	rm -f $(CACHE)/cover*
	$(BIN)/python -m coverage run -m pytest -q -n 2 --dist loadfile tests/unit tests/properties tests/wire tests/local \
		tests/promises tests/push tests/trust tests/legacy
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage json --quiet -o $(CACHE)/covered.json --fail-under=0
	$(BIN)/python -m coverage report

numbers: $(STAMP) ## how large and how quick it all is, from the source and from the last runs
	@$(BIN)/python -m bench.numbers

soak: $(STAMP) ## all stores with ten times the examples, then random requests, bad peers and simulated fleets for SECONDS=600 each; SEED= to repeat
	MCP_TASKS_TEST_TIMES=10 $(BIN)/python -m pytest -q tests/properties tests/short/test_same_answers.py
	$(BIN)/python -m tests.short.soak --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.peers.soak --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.simulation.soak --seconds $(or $(SECONDS),600) --processes 2 $(if $(SEED),--seed $(SEED))

chaos: $(STAMP) ## a fleet under fire on BACKEND=postgres, redis or sqlite, for SECONDS=60; SEED= to repeat
	$(BIN)/python -m tests.fleet.chaos --backend $(or $(BACKEND),postgres) --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

takeover: $(STAMP) ## how long the tasks of a killed worker wait, on BACKEND=postgres, redis or sqlite
	$(BIN)/python -m tests.fleet.takeover --backend $(or $(BACKEND),postgres)

interop: $(STAMP) ## other implementations against ours, installed on first use
	$(BIN)/python -m pytest -q -m interop

conformance: $(STAMP) ## the official suite alone, with its table
	$(BIN)/python -m tests.conformance.harness

bench: $(STAMP) ## measure, beside a bare SDK server in the same run
	$(BIN)/python -m bench

docs: $(VENV)/.docs ## write generated parts of the docs again, and build the site into site/; VERSION=0.1.0 for a release, URL= for where it will be
	$(BIN)/python -m docs.site $(if $(value VERSION),--version "$$VERSION") $(if $(URL),--url "$(URL)")

$(VENV)/.docs: $(STAMP)
	@# Not part of the set-up: tests need none of it.
	$(PIP) install -e '.[docs]' -c $(CONSTRAINTS)
	touch $@

pictures: $(STAMP) ## record the pictures of the command line again (needs tmux)
	$(BIN)/python -m docs.assets.record

session: $(STAMP) ## record docs/session.md again: the ten things that people do most at a terminal
	$(BIN)/python -m docs.assets.session

browse: $(VENV)/.docs ## build the site and look at it with a real browser (needs the npm registry on first use)
	$(BIN)/python -m tests.docs.browse

format: $(STAMP) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what was built
	rm -rf $(VENV) .cache .hypothesis .pytest_cache .ruff_cache site

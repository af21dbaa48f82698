# Everything a developer types. `make` alone prints this list.
#
# Variables: PYTHON (the interpreter to build on), JOBS (test processes at once, for `realtime` tests at
# most two for each core; 0 = one process, no xdist), TESTS (what to test), ARGS (more arguments for pytest), HOLDFAST_TEST_ENGINES (URL
# schemes, separated by commas: test these engines only, and need no other servers), HOLDFAST_TEST_THOROUGH
# (1: every combination of the tests' parameters, more examples; tests/support/thorough.py).

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# The tests start hundreds of interpreters. Where a shell forbids Python to keep what it has compiled, each of
# them would compile the whole library anew: twice the time of a run.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
JOBS ?= 4
TESTS ?= tests
ARGS ?=

# The full suite runs on PYTHON. These versions, where they are present, run what could differ
# between versions, without the tests marked slow, so that `make test` stays within minutes: the oldest
# and the newest that are supported. OTHER_VERSIONS='3.11 3.12 3.13' runs them all.
OTHER_VERSIONS ?= 3.11 3.13
ifdef HOLDFAST_TEST_ENGINES
OTHER_ENGINES ?= $(HOLDFAST_TEST_ENGINES)
else
OTHER_ENGINES ?= memory,sqlite
endif
OTHER_TESTS ?= $(wildcard $(addprefix tests/,api contract engines/sqlite fencing protocols tidy))

BIN := .venv/bin
STAMP := .venv/.stamp
SETUP := tools/setup-venv pyproject.toml

.PHONY: help
help: ## Show this list
	@printf 'Holdfast: distributed locks you can trust\n\n'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s  %s\n", $$1, $$2}'

.PHONY: setup
setup: $(STAMP) ## Make .venv with Holdfast and the development tools
	@:

$(STAMP): $(SETUP)
	@tools/setup-venv "$(PYTHON)" .venv
	@touch $@

# Reached through a pattern rule only, so make would take the stamp for a temporary file.
.PRECIOUS: .venv-%/.stamp
.venv-%/.stamp: $(SETUP)
	@tools/setup-venv "$$(tools/find-python $*)" .venv-$*
	@touch $@

.PHONY: run
run: $(STAMP) ## Show what locks are for, with real processes on the embedded engine
	@$(BIN)/holdfast demo

.PHONY: test
test: test-main test-others ## Run all tests; the version-sensitive ones on other Pythons too

.PHONY: test-all
test-all: ## Run all tests thoroughly on every Python found, then the larger campaign in virtual time
	@HOLDFAST_TEST_THOROUGH=1 $(MAKE) --no-print-directory test OTHER_VERSIONS='3.11 3.12 3.13'
	@$(MAKE) --no-print-directory sim

.PHONY: servers
servers: ## Install the servers that the tests start, where they are missing (Debian packages)
	@HOLDFAST_TEST_ENGINES="$(HOLDFAST_TEST_ENGINES)" tools/install-servers

.PHONY: test-main
test-main: $(STAMP) servers
	@printf '== %s: all tests ==\n' "$$($(BIN)/python --version)"
	@HOLDFAST_TEST_ENGINES="$(HOLDFAST_TEST_ENGINES)" $(BIN)/python tools/run_tests.py --jobs $(JOBS) $(TESTS) -- $(ARGS)

.PHONY: test-others
test-others: test-main
	@main=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	for version in $(OTHER_VERSIONS); do \
	    if [ "$$version" = "$$main" ]; then continue; fi; \
	    if [ -z "$$(tools/find-python $$version)" ]; then \
	        printf '== Python %s: not present, skipped ==\n' "$$version"; continue; \
	    fi; \
	    $(MAKE) --no-print-directory test-on-$$version; \
	done

test-on-%: .venv-%/.stamp
	@printf '== %s: %s, engines %s ==\n' "$$(.venv-$*/bin/python --version)" "$(OTHER_TESTS)" "$(OTHER_ENGINES)"
	@HOLDFAST_TEST_ENGINES="$(OTHER_ENGINES)" tools/install-servers
	@HOLDFAST_TEST_ENGINES="$(OTHER_ENGINES)" .venv-$*/bin/python tools/run_tests.py --jobs $(JOBS) $(OTHER_TESTS) -- -m 'not slow' -p no:cacheprovider $(ARGS)

# What Holdfast is compared with lives in an environment of its own, away from the development tools.
# A run of some engines replaces their results; one that leaves measurements out, or is shorter, none.
ENGINES ?=
MEASURES ?=
SECONDS ?=
RESULTS ?= $(if $(MEASURES)$(SECONDS),build/bench,benchmarks/results)

.venv-bench/.stamp: $(SETUP) benchmarks/requirements.txt benchmarks/requirements-etcd3.txt
	@tools/setup-venv "$(PYTHON)" .venv-bench
	@.venv-bench/bin/python -m pip install -qq --disable-pip-version-check -r benchmarks/requirements.txt
	@rm -rf .venv-bench/etcd3
	@.venv-bench/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
	    --target .venv-bench/etcd3 -r benchmarks/requirements-etcd3.txt
	@touch $@

.PHONY: bench
bench: .venv-bench/.stamp ## Measure beside peers and the raw limit (ENGINES=, MEASURES=, SECONDS= each, RESULTS=)
	@HOLDFAST_TEST_ENGINES="$(ENGINES)" tools/install-servers
	@.venv-bench/bin/python -m benchmarks --results "$(RESULTS)" $(if $(ENGINES),--engines $(ENGINES)) \
	    $(if $(MEASURES),--measures $(MEASURES)) $(if $(SECONDS),--seconds $(SECONDS))

# Seeded schedules in virtual time. A failure prints the line that replays it.
SCHEDULES ?= 2000
SEED ?=
SCENARIO ?=
PLAN ?=

.PHONY: sim
sim: $(STAMP) ## Run random fault schedules in virtual time: SCHEDULES=… [SEED=…] [SCENARIO=…]
	@PYTHONPATH=tests $(BIN)/python -m simulation --schedules "$(SCHEDULES)" --seed "$(SEED)" \
	    --scenario "$(SCENARIO)" --plan '$(PLAN)'

.PHONY: check
check: $(STAMP) ## Lint, formatting, types (ruff, ruff format, mypy strict)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

.PHONY: docs
docs: $(STAMP) ## Write the generated parts of the documents
	@$(BIN)/python tools/generate_docs.py

.PHONY: format
format: $(STAMP) ## Format the code and apply the safe fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: clean
clean: ## Remove everything that the other commands made
	@rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each target sets up what it needs on a fresh clone. Needs: GNU make, Python 3.11 or newer; the rest is looked for when wanted.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
STORE ?= sqlite
PYTEST_ARGS ?=
# Most tests wait for processes and disks. Each worker has a Kafka and a Redis of its own; a file's tests stay together.
TEST_WORKERS ?= 3
BIN := .venv/bin
LOCAL := $(PYTHON) deploy/local
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# How packages of the system are installed: only with apt-get, as root or by a sudo that asks for nothing. Else what is missing is named.
ROOT := $(shell if [ "$$(id -u)" = 0 ]; then echo env; elif sudo -n true 2>/dev/null; then echo sudo env; fi)
CAN_APT := $(if $(ROOT),$(shell command -v apt-get))
APT := $(ROOT) DEBIAN_FRONTEND=noninteractive apt-get -qq
APT_INSTALL := $(APT) update && $(APT) install -y --no-install-recommends

.PHONY: help demo bench test check services-up services-down services clean

help:
	@echo 'make demo                the main job on recorded agent runs, on the embedded store (nothing but Python needed)'
	@echo 'make demo STORE=kafka    the same on a Kafka and a Redis that are started for it'
	@echo 'make bench               measures the ledger and what else could be used; STORE=kafka with Kafka and Redis; BENCH_ARGS="--rounds 3"'
	@echo 'make test                all tests, with a real Kafka and Redis; PYTEST_ARGS="-m '"'not slow'"'" and so on'
	@echo 'make check               formatting, lint, types, import contracts'
	@echo 'make services-up         Kafka and Redis that stay up; make services-down stops them'
	@echo 'make clean               removes what was built here (not the downloads in ~/.cache/fencepost)'

# One stamp for each set of extras: the demo must not wait for test tools.
$(BIN)/.python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Say which: make PYTHON=python3.12 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(if $(CAN_APT),{ $(APT_INSTALL) python3-venv; },{ echo 'Python lacks its venv module; install it (Debian: apt-get install python3-venv)' >&2; exit 1; })
	$(PYTHON) -m venv .venv
	@touch $@

$(BIN)/.runtime: pyproject.toml $(BIN)/.python
	$(PIP_INSTALL) --editable .
	@touch $@

$(BIN)/.test: pyproject.toml $(BIN)/.python
	$(PIP_INSTALL) --editable '.[test]'
	@touch $@ $(BIN)/.runtime

$(BIN)/.dev: pyproject.toml $(BIN)/.python
	$(PIP_INSTALL) --editable '.[test,dev]'
	@touch $@ $(BIN)/.runtime $(BIN)/.test

demo: $(BIN)/.runtime
ifeq ($(STORE),kafka)
demo: services
	$(LOCAL) run -- $(BIN)/fencepost demo --store kafka --url 'kafka://{kafka}/fencepost-demo-{unique}?projection={redis}'
else
	$(BIN)/fencepost demo
endif

BENCH_ARGS ?=
BENCH := env PYTHONPATH=tests $(BIN)/python -m bench.run $(BENCH_ARGS)

$(BIN)/.bench: pyproject.toml $(BIN)/.python
	$(PIP_INSTALL) --editable '.[bench]'
	@touch $@ $(BIN)/.runtime

# In an environment of its own, since it wants an older client of Kafka; without it its row says so.
.venv-quix/.ready: tests/bench/requirements-quixstreams.txt
	$(PYTHON) -m venv .venv-quix
	.venv-quix/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

ifeq ($(STORE),kafka)
bench: $(BIN)/.bench .venv-quix/.ready services
	$(LOCAL) run -- $(BENCH) --kafka '{kafka}' --redis '{redis}'
else
bench: $(BIN)/.bench
	$(BENCH)
endif

# Java, Maven (for the jars only) and Redis; installed where that is possible, else the start says what is missing.
services:
ifneq ($(CAN_APT),)
	@missing=(); \
	command -v redis-server >/dev/null || missing+=(redis-server); \
	if [ -z "$${FENCEPOST_TEST_KAFKA:-}" ] || [ "$${FENCEPOST_TEST_KAFKA}" = local ]; then \
	  command -v java >/dev/null || missing+=(openjdk-17-jre-headless); \
	  command -v mvn >/dev/null || [ -n "$$(ls -d "$${FENCEPOST_CACHE:-$$HOME/.cache/fencepost}"/kafka-*/ 2>/dev/null)" ] || missing+=(maven); \
	fi; \
	if [ $${#missing[@]} -gt 0 ]; then echo "installing $${missing[*]}"; { $(APT_INSTALL) "$${missing[@]}"; } >/dev/null; fi
endif

services-up: services
	$(LOCAL) up

services-down:
	$(LOCAL) down

# The tests choose and start their own services. Without Java or Redis they skip with the reason, unless FENCEPOST_REQUIRE_SERVICES=1.
test: $(BIN)/.test services
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

check: $(BIN)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .typing/fencepost/schemas .typing/fencepost/ledger .typing/fencepost/producer .typing/fencepost/consumer .typing/fencepost/deploy tests
	$(BIN)/lint-imports --no-logo

clean:
	rm -rf .venv .venv-quix build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

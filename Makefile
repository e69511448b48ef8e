# Every target sets up what it needs, says so while it does, and can be run again.

.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
PYTHONS ?= python3.11 python3.12 python3.13
VENV := .venv
BIN := $(VENV)/bin
CLUSTER := $(PYTHON) tests/cluster/kube.py
IMAGES := $(PYTHON) tests/cluster/images.py

# A KUBECONFIG given on the command line selects a cluster of yours: `make e2e KUBECONFIG=…`.
ifeq ($(origin KUBECONFIG),command line)
export RIDGELINE_KUBECONFIG := $(abspath $(KUBECONFIG))
endif

.PHONY: help
help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---------------------------------------------------------------- set-up

$(VENV)/.installed: pyproject.toml requirements-dev.lock
	@echo "Setting up $(VENV) from requirements-dev.lock."
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "Ridgeline needs Python 3.11, 3.12 or 3.13; this is " + sys.version.split()[0] + ". Choose one: make PYTHON=python3.12 …")'
	@$(PYTHON) -m venv $(VENV) || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	    && echo "Installing python3-venv from Debian's packages." && apt-get update -q \
	    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-venv \
	    && $(PYTHON) -m venv $(VENV); } \
	    || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

.PHONY: setup
setup: $(VENV)/.installed  ## create the virtual environment

.PHONY: demo
demo: setup  ## a day in the life of a simulated fleet, in about a minute: no cluster, no GPU
	@$(BIN)/ridgeline demo $(ARGS)

# ---------------------------------------------------------------- the fast tier

.PHONY: check
check: setup  ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check operator exporters dashboards
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: compiler
compiler:
	@command -v cc > /dev/null || command -v gcc > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	    && echo "Installing a C compiler from Debian's packages, for the tests' stand-in of NVIDIA's library." \
	    && apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends gcc libc6-dev; } \
	    || { echo "The tests need a C compiler; on Debian: apt-get install gcc libc6-dev"; exit 1; }

.PHONY: test
test: setup compiler  ## the fast tier: no cluster, no engine
	$(BIN)/pytest -m "not engine and not apiserver and not cluster"

.PHONY: check-determinism
check-determinism:  ## one replay in several Pythons, byte by byte (PYTHONS="python3.11 python3.12 python3.13")
	@PYTHONS="$(PYTHONS)" PYTHONPATH=operator:exporters tests/simulate/compare_pythons.sh

.PHONY: check-gpu
check-gpu:  ## the GPU exporter against known work: needs a GPU and, as PYTHON, one with torch
	@$(PYTHON) tests/gpu/check_gpu.py

.PHONY: generate
generate: setup  ## write the CRD, the dashboards and the tables and plots of the docs anew
	$(BIN)/python -m ridgeline crd > helm/ridgeline/crds/inferencefleets.yaml
	$(BIN)/python -m dashboards.generate
	$(BIN)/python -m dashboards.metrics_page
	$(BIN)/python -m dashboards.roofline_page

.PHONY: lock
lock:  ## resolve the lock files anew (needs uv)
	uv pip compile -q --upgrade --universal --generate-hashes --no-header --no-annotate --no-emit-index-url --extra operator --extra gpu pyproject.toml -o requirements.lock
	uv pip compile -q --upgrade --universal --generate-hashes --no-header --no-annotate --no-emit-index-url --extra operator --extra gpu --group dev -c requirements.lock pyproject.toml -o requirements-dev.lock

.PHONY: bench
bench: setup  ## figures against their goals, 20 minutes (some: make bench ARGS="accuracy speed"; all: ARGS=--help)
	@$(BIN)/python -m tests.bench $(ARGS)

.PHONY: bench-policy
bench-policy: setup  ## the policy beside static choices on loads that shift, some hours (ARGS=--help; goes on where stopped)
	@$(BIN)/python -m tests.bench.policy $(ARGS)

.PHONY: bench-robustness
bench-robustness: setup  ## the policy with wrong metrics and dead engines, ten minutes (ARGS=--help; goes on where stopped)
	@$(BIN)/python -m tests.bench.robustness $(ARGS)

# ---------------------------------------------------------------- the real tiers

.PHONY: e2e-engine
e2e-engine: setup  ## real vLLM CPU engines, NIXL and SMG
	$(IMAGES) environment
	$(BIN)/pytest -m engine --timeout 1800

.PHONY: e2e-apiserver
e2e-apiserver: setup  ## the real API server: CRD rules, manifests, leadership
	$(CLUSTER) build
	$(IMAGES) router-environment
	$(BIN)/pytest -m apiserver --timeout 600

.PHONY: e2e
e2e: setup  ## Kubernetes with real engines: split, merge, tune, crash tests
	@if [ -z "$$RIDGELINE_KUBECONFIG" ]; then $(CLUSTER) up && $(IMAGES) all; fi
	$(BIN)/pytest -m cluster --timeout 1800 -s

.PHONY: cluster-up
cluster-up: setup  ## start the test cluster and build its images
	$(CLUSTER) up
	$(IMAGES) all

.PHONY: cluster-down
cluster-down:  ## stop the test cluster; programs and images stay cached
	$(CLUSTER) down

.PHONY: demo-cluster
demo-cluster: setup  ## a real fleet of two engines that splits under load and merges when it is calm
	@if [ -z "$$RIDGELINE_KUBECONFIG" ]; then $(CLUSTER) up && $(IMAGES) all; fi
	$(BIN)/python -m tests.e2e.demo

.PHONY: clean
clean:  ## remove the virtual environment and caches of this tree
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache artifacts

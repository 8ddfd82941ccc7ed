# Every verb works on a fresh machine: it makes .venv and installs what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(CURDIR)/checkpoints
export FLWR_TELEMETRY_ENABLED := 0
export RAY_USAGE_STATS_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help setup run test lint bench docs flwr-run clean

help: ## list every verb
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(READY) ## make .venv and install the project with its development tools

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	@touch $@

run: $(READY) ## train the default experiment on embedded data (breast cancer, 5 hospitals)
	$(BIN)/dp-fedmed run

test: $(READY) lint ## lint, types, and the whole test suite on all cores, with its coverage
	$(BIN)/python -m pytest -n logical --dist loadfile --no-loadscope-reorder --cov --cov-report=term

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) ## measure speed and memory; prints a table against the targets
	$(BIN)/python -m bench

docs: $(READY) ## build the documentation site into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

flwr-run: $(READY) ## the same apps through Flower's own command, on a local SuperLink
	PATH="$(abspath $(BIN)):$$PATH" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
	$(BIN)/flwr run . --stream --federation-config "num-supernodes=5" \
	  --run-config "task='digits' privacy='none' overrides='federation.num_rounds=3' run-dir='$(RUNS)/flwr_$(shell date +%Y-%m-%d_%H-%M-%S)'"

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* htmlcov *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

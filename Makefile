# Every verb works on a fresh machine: it makes .venv and installs what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements.lock
RUNS := $(CURDIR)/checkpoints
FIRST := $(RUNS)/$(shell date +%Y-%m-%d_%H-%M-%S)_first
export FLWR_TELEMETRY_ENABLED := 0
export RAY_USAGE_STATS_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help setup lock run test test-all lint house bench docs flwr-run clean

help: ## list every verb
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(READY) ## make .venv and install the project with its development tools, in the lock's versions

$(READY): pyproject.toml $(LOCK)
	$(PYTHON) -m venv $(VENV)
	@echo 'installing the versions of $(LOCK) into $(VENV), PyTorch among them: a few minutes the first time'
	@$(BIN)/python -m pip install --quiet "$$(grep '^pip==' $(LOCK))"
	$(BIN)/python -m pip install --quiet --requirement $(LOCK)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

lock: $(READY) ## renew the lock: the newest versions that pyproject.toml's ranges allow, on every platform
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra docs --universal --upgrade \
	  --prerelease disallow --no-annotate --custom-compile-command 'make lock' --quiet --output-file $(LOCK)

run: $(READY) ## breast cancer in 5 hospitals, ε = 3 for each record; beside it the same without privacy
	$(BIN)/dp-fedmed run privacy=none run_dir=$(FIRST)_without_privacy
	$(BIN)/dp-fedmed run run_dir=$(FIRST) --beside $(FIRST)_without_privacy
	@echo "The page: $$($(BIN)/dp-fedmed report $(FIRST))"

# COVERAGE='--cov --cov-report=term' measures that of privacy/ and federation/, at twice the time.
COVERAGE ?=
PYTEST := $(BIN)/python -m pytest -n logical --dist loadfile --no-loadscope-reorder -rs
test: $(READY) lint ## lint, types, and every promise's test, on all cores
	$(PYTEST) -m 'not slow' $(COVERAGE)

test-all: test ## `make test`, then the slow tests: all crash points, Ray, a SuperLink, a wheel, a browser
	$(PYTEST) -m slow

lint: $(READY) ## ruff, mypy, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

house: $(READY) ## the rooms in numbers: rings of imports, fan-out, lines, the way of one round
	$(BIN)/python -m tools.house

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

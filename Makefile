# Every habit of the project as a target. `make` alone prints this help.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKS := dev local enqueue orchestrator scheduler worker scaler

.PHONY: help
help: ## Show this help
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  \033[36m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- set-up: a stamp per lock file, so that a second run costs nothing ---------------------------------------------

$(BIN)/uv:
	@deploy/bootstrap.sh venv "$(PYTHON)" "$(VENV)"

$(VENV)/.installed-local: requirements/local.txt pyproject.toml | $(BIN)/uv
	@deploy/bootstrap.sh install "$(VENV)" requirements/local.txt
	@touch $@

$(VENV)/.installed-dev: requirements/dev.txt pyproject.toml | $(BIN)/uv
	@deploy/bootstrap.sh install "$(VENV)" requirements/dev.txt
	@touch $@ $(VENV)/.installed-local

# Other job queues, to compare with; never in the project's own environment.
.venv-peers/.installed: requirements/peers.txt | $(BIN)/uv
	@$(BIN)/uv venv -q --clear --python $(BIN)/python .venv-peers
	@$(BIN)/uv pip install -q --python .venv-peers/bin/python --require-hashes -r requirements/peers.txt
	@touch $@

.PHONY: setup lock
setup: $(VENV)/.installed-dev ## Create .venv with everything for development
lock: | $(BIN)/uv ## Lock all dependencies with hashes into requirements/
	@for name in $(LOCKS); do \
	  $(BIN)/uv pip compile -q --generate-hashes --no-header --no-annotate --python-version 3.11 --extra $$name pyproject.toml -o requirements/$$name.txt; \
	  echo "requirements/$$name.txt"; done
	@$(BIN)/uv pip compile -q --generate-hashes --no-header --no-annotate --python-version 3.11 --only-binary :all: requirements/peers.in -o requirements/peers.txt

# --- contracts -----------------------------------------------------------------------------------------------------

.PHONY: gen proto-check proto-baseline
gen: setup ## Generate gen/ from proto/
	@$(BIN)/buf format -w --path proto/jobmesh
	@proto/generate.sh
proto-check: setup ## Lint the contracts, look for breaking changes, check that gen/ is fresh
	@$(BIN)/buf format -d --exit-code --path proto/jobmesh
	@$(BIN)/buf lint
	@$(BIN)/buf breaking --against proto/baseline.binpb
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && proto/generate.sh "$$fresh" && \
	  diff -r -q -x __pycache__ "$$fresh" gen || { echo "gen/ is not what proto/ says: run make gen" >&2; exit 1; }
proto-baseline: setup ## Take the contracts as they are as the ones later changes must not break
	@$(BIN)/buf build -o proto/baseline.binpb

# --- the local mesh ------------------------------------------------------------------------------------------------

.PHONY: up down status clean
up: $(VENV)/.installed-local ## From nothing to a running mesh, with a demo job streamed to its end
	@$(BIN)/jobmesh up
down: ## Stop the mesh; its data stays
	@if [ -x $(BIN)/jobmesh ]; then $(BIN)/jobmesh down; else echo "nothing to stop: no $(VENV)"; fi
status: ## Show every process, shard and pool of the mesh
	@$(BIN)/jobmesh status
clean: ## Stop the mesh and remove its data
	@if [ -x $(BIN)/jobmesh ]; then $(BIN)/jobmesh down --clean; fi
	@rm -rf .jobmesh

# --- quality -------------------------------------------------------------------------------------------------------

.PHONY: check lint types arch fmt test test-unit test-integration test-e2e bench bench-peers bench-growth bench-time metrics chaos chaos-quick
CHAOS = $(foreach name,seed jobs minutes faults kinds folder before,$(if $($(shell echo $(name) | tr a-z A-Z)),--$(name) $($(shell echo $(name) | tr a-z A-Z))))
fmt: setup ## Format the code
	@$(BIN)/ruff check -q --fix . && $(BIN)/ruff format -q .
lint: setup ## Style and likely mistakes
	@$(BIN)/ruff check . && $(BIN)/ruff format --check -q .
types: setup ## mypy, strict
	@$(BIN)/mypy services sdk/jobmesh deploy/localmesh
arch: setup ## The direction of imports
	@PYTHONPATH=.:gen:sdk:deploy $(BIN)/lint-imports --no-cache --config .importlinter
check: proto-check lint types arch ## Everything that needs no server, in CI's order
# Tests with real servers may fail by the machine's hour rather than by the code: they get a second try, which the
# summary shows as RERUN. Each is a bug of the test or of the mesh, and `RERUNS=0` makes it count as one.
RERUNS ?= 1
test: check ## From nothing to green: every check and every test, with real servers
	@# The whole mesh mostly waits: what needs no server runs in the time that it leaves, and says so at its end.
	@$(MAKE) --no-print-directory -j 2 --output-sync=target test-unit test-e2e
	@$(MAKE) --no-print-directory test-integration
	@$(BIN)/python -m tests.chaos --quick --tries 2
test-unit: setup ## Only the tests without servers
	@$(BIN)/pytest -q -n 2 tests/unit tests/contract
test-integration: setup ## Only the tests of each part with its real servers
	@$(BIN)/pytest -q -n 3 --dist loadfile --reruns $(RERUNS) tests/integration
test-e2e: setup ## Only the tests of the whole mesh
	@$(BIN)/pytest -q -n 2 --dist loadgroup --reruns $(RERUNS) tests/e2e
bench: setup ## Start a mesh of its own and measure it
	@$(BIN)/python -m tests.bench $(BENCH)
bench-peers: setup .venv-peers/.installed ## The same workloads on other job queues, side by side
	@$(BIN)/python -m tests.bench.peers $(BENCH)
bench-growth: setup ## Throughput and claim time of a shard that holds a million jobs
	@$(BIN)/python -m tests.bench.growth $(BENCH)
bench-time: setup ## How punctual the mesh is: lateness, herds, killed schedulers, idle cost
	@$(BIN)/python -m tests.bench.timing $(FIGURES)
chaos: setup ## Break a mesh for 35 minutes and prove what it promised (SEED= JOBS= MINUTES= FAULTS= KINDS=)
	@$(BIN)/python -m tests.chaos $(CHAOS)
chaos-quick: setup ## The same in three minutes: 3,000 jobs, 36 faults of 18 kinds (SEED=)
	@$(BIN)/python -m tests.chaos --quick $(CHAOS)
.PHONY: chaos-recovery
chaos-recovery: setup ## One fault at a time for 15 minutes: does recovery keep its targets? (SEED= MINUTES= KINDS=)
	@$(BIN)/python -m tests.chaos --apart $(CHAOS)
.PHONY: chaos-failpoints chaos-mutants simulate soak
SOAK = $(foreach name,minutes rate folder,$(if $($(shell echo $(name) | tr a-z A-Z)),--$(name) $($(shell echo $(name) | tr a-z A-Z))))
soak: setup ## An hour of moderate load: does anything grow? (MINUTES= RATE=)
	@$(BIN)/python -m tests.soak $(SOAK)
chaos-failpoints: setup ## Strike every failpoint on a real mesh, and check what is left (long)
	@$(BIN)/python -m tests.failpoints $(ARGS)
chaos-mutants: setup ## Break the mesh in 29 ways; the checker must find each
	@$(BIN)/python -m tests.mutants $(ARGS)
SEEDS ?= 1000
simulate: setup ## The services' loops on a simulated mesh: make simulate SEEDS=10000
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)
metrics: setup ## Size of functions and files (our budgets stand in CONTRIBUTING.md)
	@$(BIN)/python tests/code_metrics.py

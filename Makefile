# `make demo` and `make test` do all the set-up themselves, in .venv, on a fresh machine with Python 3.10 or newer.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
IN_PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile

.PHONY: demo test test-all test-faults fuzz lint clean-demo

demo: $(READY)
	$(BIN)/tune run examples/quickstart.yaml $(if $(wildcard runs/quickstart/study.db),--resume)
	$(BIN)/python examples/train_with_policy.py runs/quickstart/policy.yaml

test: $(READY)
	$(BIN)/python -m pytest $(IN_PARALLEL) -m "not slow"

# Those that take long as well, and those that judge time.
test-all: $(READY)
	$(BIN)/python -m pytest $(IN_PARALLEL)

# Files with anything in them, on every reader of files: FUZZ_INPUTS edited ones each, and as many guided by coverage.
fuzz: export FUZZ_INPUTS ?= 100000
fuzz: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[fuzz]"
	$(BIN)/python -m pytest $(IN_PARALLEL) --dist load tests/fuzz

# Kills drivers, cuts connections, fills disks; FAULTS_SEED=1000 kills at other points.
test-faults: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 tests/faults

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Forgets the demo's study, so that the next `make demo` searches anew.
clean-demo:
	rm -rf runs/quickstart

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[huggingface,dev]"
	touch $(READY)

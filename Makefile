# make demo | test | test-fast | fuzz | lint | bench | bench-verdicts | proto     Everything is installed into .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The CPU build where the index offers one; any other spec can pull gigabytes of CUDA packages.
TORCH ?= torch==2.13.0

.PHONY: setup demo test test-fast fuzz lint format bench bench-verdicts proto clean
.DELETE_ON_ERROR:

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[collector]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(VENV)/.ready-dev

demo: $(VENV)/.ready
	@$(BIN)/otel-fr demo

# Most tests wait for processes and timeouts of their own; a file's tests stay together, for they share programs.
test: setup
	$(BIN)/python -m pytest -n 3 --dist loadfile

# Without other processes and servers: under a minute.
test-fast: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Mutated input to a real collector and to the readers of files, for so many seconds: tests/fuzz.
SECONDS ?= 300
fuzz: setup
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python benchmarks/run.py

# Random jobs with one fault each, and healthy ones; some minutes on two cores.
bench-verdicts: setup
	$(BIN)/python benchmarks/verdicts.py

# protoc 29 (grpcio-tools 1.70): the oldest generated code that every protobuf runtime we support accepts.
proto:
	$(PYTHON) -m venv $(VENV)/proto
	$(VENV)/proto/bin/python -m pip install --quiet 'grpcio-tools==1.70.0' 'setuptools<80' 'protobuf<6'
	$(VENV)/proto/bin/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. proto/otel_fr/control/v1/control.proto

clean:
	rm -rf $(VENV) demo-out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

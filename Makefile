# make demo | test | test-all | test-fast | test-torch | simulated-device | test-gpu | nccl-table | machines | fuzz | chaos | lint | bench | bench-steps | bench-verdicts | bench-localisation | bench-scale | wheel | sanitize | docs | screenshots | example-incident | proto
# Everything is installed into .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The CPU build where the index offers one; any other spec can pull gigabytes of CUDA packages.
TORCH ?= torch==2.13.0

.PHONY: setup demo test test-all test-fast test-torch simulated-device test-gpu nccl-table machines fuzz chaos lint format bench bench-steps bench-verdicts bench-localisation bench-scale wheel sanitize docs screenshots example-incident soak proto clean
.DELETE_ON_ERROR:

# The extension of the ring writer is compiled by the installation.
NATIVE := $(wildcard $(addprefix otel_fr/capture/native/*,.c .cpp .h .hpp))

$(VENV)/.ready: pyproject.toml $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[collector]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# $(call kernel,BIN): the compiled engine's kernel for the torch of an environment, in this user's cache and in the
# tests'. Where it cannot be compiled, one line says why, and jobs record with the Python engine.
TEST_KERNELS := build/test-cache/otel-fr/kernels
kernel = @built=$$($(1)/otel-fr kernel build) && mkdir -p -m 700 $(TEST_KERNELS) && cp -p -u "$$built" $(TEST_KERNELS) || true

setup: $(VENV)/.ready-dev
	$(call kernel,$(BIN))

demo: $(VENV)/.ready
	$(call kernel,$(BIN))
	@$(BIN)/otel-fr demo

# Most tests wait for processes and timeouts of their own, so there are more workers than processors of a small machine. A file's
# tests stay together, for they share programs. In the order of their names, long files come before the quick ones of tests/unit.
# Tests on NCCL skip unless `make simulated-device` has been run once; then it is kept up to date here.
test: setup
	$(if $(wildcard build/simulated-device/*/.torch),$(MAKE) simulated-device)
	$(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder

# All that `make test` runs and all that it leaves out: long cases, training frameworks, torchft, another torch, made input.
# About an hour and a half on two processors; by hand, before a release. docs/reference/compatibility.md says what was tried.
test-all: setup simulated-device
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' lightning transformers accelerate
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchft==0.2.0
	OTEL_FR_TEST_START=fresh $(BIN)/python -m pytest -m "" -n 6 --dist loadfile --no-loadscope-reorder
	$(MAKE) test-torch
	$(MAKE) fuzz
	$(MAKE) chaos

# Without other processes and servers: under a minute.
test-fast: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/unit

# The capture tests, jobs with faults and the demo with another torch, which gets an environment of its own:
# make test-torch VERSION=2.6.0. A CUDA build and the nvidia packages that its import needs take 5 GB.
VERSION ?= 2.14.1
OTHER := build/torch-$(VERSION)
TESTS ?= tests/unit/capture tests/integration/capture tests/acceptance/test_engines_agree.py \
    tests/acceptance/test_faults.py tests/acceptance/test_hook_files.py
test-torch: $(OTHER)/.ready
	$(call kernel,$(OTHER)/bin)
	$(OTHER)/bin/python -m pytest -m "" -n 2 --dist loadfile -o cache_dir=$(abspath $(OTHER))/pytest $(TESTS)
	cd $(OTHER) && bin/otel-fr demo

$(OTHER)/.ready: pyproject.toml $(NATIVE)
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==$(VERSION)'
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# A CUDA device and an NCCL of our own, on which PyTorch's ProcessGroupNCCL runs without a GPU: tests/simulated_device. A
# minute or two, 1.3 GB in build/simulated-device; a second call does nothing. Another torch: make simulated-device SIMULATED_TORCH=2.12.1.
SIMULATED_TORCH ?=
simulated-device:
	$(PYTHON) -m tests.simulated_device.install $(if $(SIMULATED_TORCH),--torch $(SIMULATED_TORCH))

# Jobs on NCCL, on one GPU and on several; without one it says so. GPU_REPORT: what was found, as JUnit XML. GPU_PYTHON: a Python that
# has a torch with CUDA, otel-fr and pytest; the torch in .venv may be a CPU build.
GPU_PYTHON ?=
GPU_REPORT ?= build/gpu-report.xml
test-gpu: $(if $(GPU_PYTHON),,setup)
	-XDG_CACHE_HOME=$(CURDIR)/build/test-cache $(or $(GPU_PYTHON),$(BIN)/python) -m otel_fr.cli kernel build
	OTEL_FR_TEST_GPU=1 OTEL_FR_TEST_ENGINE=compiled $(or $(GPU_PYTHON),$(BIN)/python) -m pytest -m "" -o junit_family=xunit1 \
	    --junitxml=$(GPU_REPORT) tests/gpu

# Each fault on the simulated device, and what is said of it: the tables of tests/gpu/README.md. TABLE: more options.
TABLE ?=
nccl-table: setup simulated-device
	PYTHONPATH=.:collector $(BIN)/python -m tests.gpu.table $(TABLE)

# Jobs on several hosts, made of namespaces of this machine: what goes wrong with hosts and links, and what is said of it. As root;
# twenty-five minutes, and a table.
machines: setup
	$(BIN)/python -m pytest -m "" tests/acceptance/test_machine_cases.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.house_rules
	npx --yes @biomejs/biome@2.3.0 lint --error-on-warnings collector otel_fr
	npx --yes --package typescript@5.9.3 tsc --project jsconfig.json

# The documents as a site in build/site. A link or anchor that leads nowhere is an error (not with --quiet, which hides it).
docs: build/docs/.ready
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict
	@echo build/site/index.html

build/docs/.ready:
	$(PYTHON) -m venv build/docs
	build/docs/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.7,<10'
	@touch $@

# The pictures of the page in docs/images, by Chromium.
screenshots: setup
	PYTHONPATH=. $(BIN)/python docs/images/screenshots.py

# One incident as its readers get it; docs/reference/incident.md has the webhook's.
example-incident: setup
	PYTHONPATH=. $(BIN)/python -m tests.support.example_incident

# Mutated input to a real collector and to the readers of files, for so many seconds: tests/fuzz.
SECONDS ?= 300
fuzz: setup
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

# Random faults of real jobs and kills of the collector, ten minutes at most: tests/chaos. CHAOS: more options, such as
# CHAOS="--jobs 1000 --kills 50 --seconds 50000 --seed 1".
CHAOS ?=
chaos: setup
	$(BIN)/python -m tests.chaos $(CHAOS)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python benchmarks/run.py

# What otel-fr adds to training steps: the quieter the machine, and the longer, the more precise. STEPS: more options.
STEPS ?=
bench-steps: setup
	$(BIN)/python benchmarks/steps.py $(STEPS)

# Random jobs with one fault each, and healthy ones; some minutes on two cores.
bench-verdicts: setup
	$(BIN)/python benchmarks/verdicts.py

# Real jobs with faults, and which tool of the field names the right rank: docs/development/localisation.md. Half an hour on
# two processors; LOCALISATION: more options, such as --quick, five minutes. On NCCL if `make simulated-device` has been run.
LOCALISATION ?=
bench-localisation: setup
	PYTHONPATH=.:collector $(BIN)/python -m benchmarks.localisation $(LOCALISATION)

# One job of 1,024 to 100,000 simulated ranks, and 2,048 jobs of 8, on one collector: what a report costs, and when a rank
# that left a collective out is named, ten times; half an hour. SCALE: more options.
SCALE ?=
bench-scale: setup
	$(BIN)/python benchmarks/scale.py $(SCALE)

# A wheel with kernels for the torch in .venv and for each version in TORCHES. Its wheel (0.6 GB) is downloaded for
# the headers: make wheel TORCHES="2.6.0 2.14.1". For this Python; a kernel serves every Python.
TORCHES ?=
KERNELS := otel_fr/capture/native/kernels
wheel: setup
	rm -rf $(KERNELS) build/lib build/torch
	$(BIN)/otel-fr kernel build --folder $(KERNELS)
	set -e; for version in $(TORCHES); do \
	    $(BIN)/python -m pip download --quiet --no-deps --dest build/torch torch==$$version; \
	    $(BIN)/otel-fr kernel build --folder $(KERNELS) --wheel build/torch/torch-$$version*.whl; \
	    rm -rf build/torch; \
	done
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	rm -rf $(KERNELS)

# Jobs with one random fault each, and healthy ones: who is named, and when the others are freed; about 15 minutes.
RUNS ?= 60
soak: setup
	$(BIN)/python benchmarks/faults.py --runs $(RUNS)

# The compiled engine under AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of the tree: the ring writer, and the
# kernel with the Works that it follows, over the programs of both engines; 5 to 15 minutes. torch and Python are not
# instrumented: they leak at exit, and classes of torch are known by no type information (vptr).
SANITIZED := build/sanitized
SANITIZERS := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined
sanitize: setup
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	cp -r otel_fr collector tests pyproject.toml README.md LICENSE $(SANITIZED)
	rm -f $(SANITIZED)/otel_fr/capture/native/*.so
	CFLAGS="$(SANITIZERS)" LDFLAGS="-fsanitize=address,undefined" $(BIN)/python -m pip install --quiet --no-deps \
	    --target $(SANITIZED)/installed ./$(SANITIZED)
	cp $(SANITIZED)/installed/otel_fr/capture/native/*.so $(SANITIZED)/otel_fr/capture/native/
	cd $(SANITIZED) && CXX="c++ $(SANITIZERS)" XDG_CACHE_HOME=$(abspath $(SANITIZED))/build/test-cache PYTHONPATH=. \
	    $(abspath $(BIN))/python -m otel_fr.cli kernel build
	cd $(SANITIZED) && ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 UBSAN_OPTIONS=print_stacktrace=1 \
	    PYTHONPATH=.:collector LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	    $(abspath $(BIN))/python -m pytest -q -p no:cacheprovider --show-capture=no \
	    tests/unit/ring/test_twins.py tests/integration/capture/test_works.py tests/integration/capture/test_engines.py

# protoc 29 (grpcio-tools 1.70): the oldest generated code that every protobuf runtime we support accepts.
proto:
	$(PYTHON) -m venv $(VENV)/proto
	$(VENV)/proto/bin/python -m pip install --quiet 'grpcio-tools==1.70.0' 'setuptools<80' 'protobuf<6'
	$(VENV)/proto/bin/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. \
	    proto/otel_fr/attribution/v1/attribution.proto proto/otel_fr/checks/v1/node_health.proto \
	    proto/otel_fr/control/v1/control.proto

clean:
	rm -rf $(VENV) demo-out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

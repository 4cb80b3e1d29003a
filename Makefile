# All targets work from a fresh clone: each one does its own set-up.

VENV   := .venv
PYTHON_VENV := $(VENV)/bin/python
STAMPS := .output
STEP   := sh tools/step.sh
JOBS   := -j$(shell nproc)
ARCH   := $(shell uname -m)
OBJECT := otel_gpu/_bpf/otel_gpu.$(ARCH).bpf.o
CLANG_FORMAT := $(shell command -v clang-format || command -v clang-format-14 || echo clang-format)
C_SOURCES = $(wildcard bpf/*.h bpf/*/*.[ch] tests/stubs/*.[ch] tests/workloads/*.[ch] tools/*.[ch] benchmarks/*.[ch] \
	otel_gpu/demo/*.[ch] preload/*.[ch] tests/fuzz/*.[ch])
# One process per CPU and one more; the tests of a file run in one process (see tests/turns.py).
IN_PARALLEL := -n auto --maxprocesses 8 --no-loadscope-reorder
# bpftool is in a folder that is not in every user's PATH.
export PATH := $(PATH):/usr/sbin:/sbin
# Otherwise each of many processes would compile the packages that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all fuzz soak test-backends check format bpf bpf-host preload wire preload-tables semconv docs check-generated bench check-gpu golden wheel clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: $(STAMPS)/venv bpf-host preload ## Install what is needed, for .venv/bin/otel-gpu

demo: setup ## Capture a real workload and send it to a real collector
	@$(PYTHON_VENV) examples/demo.py

test: ## Run the tests; as root, those that load BPF programs too
	@$(MAKE) --no-print-directory $(JOBS) $(STAMPS)/venv bpf preload $(STAMPS)/tests-system
	@if [ -n "$$OTEL_GPU_TEST_REQUIRE" ]; then \
		:; \
	elif [ "$$(id -u)" = 0 ] && bpftool prog show >/dev/null 2>&1; then \
		OTEL_GPU_TEST_REQUIRE=kernel,collector; \
	else \
		echo "test: not root, or no bpf(2) here: tests that load BPF programs are skipped"; \
		OTEL_GPU_TEST_REQUIRE=collector; \
	fi; \
	if [ "$$(id -u)" = 0 ] && grep -q '^ID=debian' /etc/os-release; then \
		OTEL_GPU_TEST_REQUIRE=$$OTEL_GPU_TEST_REQUIRE,browser; \
	fi; \
	export OTEL_GPU_TEST_REQUIRE; \
	set -x; $(PYTHON_VENV) -m pytest $(IN_PARALLEL) $(PYTEST_ARGS)

test-all: ## Run all tests: those of `test`, fuzzing for a minute, a short soak, real backends
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory fuzz MINUTES=1
	@$(MAKE) --no-print-directory soak MINUTES=2 PROCESSES=2000
	@$(MAKE) --no-print-directory test-backends

# GUIDED=1: guided by coverage of the parsers, if `pip install atheris` is possible.
fuzz: setup ## Fuzz the parsers of untrusted input for MINUTES in all, or one TARGET
	$(PYTHON_VENV) -m tests.fuzz.driver --minutes $(MINUTES) $(addprefix --target ,$(TARGET)) $(if $(GUIDED),--guided)

MINUTES ?= 30
PROCESSES ?= 20000
soak: setup $(STAMPS)/tests-system ## Inject faults for MINUTES, and start storms of PROCESSES processes
	@if [ "$$(id -u)" = 0 ] && bpftool prog show >/dev/null 2>&1; then OTEL_GPU_TEST_REQUIRE=kernel; fi; \
	export OTEL_GPU_TEST_REQUIRE OTEL_GPU_SOAK_MINUTES=$(MINUTES) OTEL_GPU_SOAK_PROCESSES=$(PROCESSES) \
		OTEL_GPU_TEST_PROCESSES=100000; \
	set -x; $(PYTHON_VENV) -m pytest -o timeout=0 -o faulthandler_timeout=0 --log-cli-level=INFO tests/soak tests/unit/test_many_processes.py $(PYTEST_ARGS)

test-backends: setup ## Run the tests with real backends and manifests; built once, in minutes
	@$(PYTHON_VENV) -m tests.backends.builds; case $$? in \
	0) OTEL_GPU_TEST_REQUIRE=backends ;; \
	2) ;; \
	*) exit 1 ;; \
	esac; \
	if [ "$$(id -u)" = 0 ] && bpftool prog show >/dev/null 2>&1; then \
		OTEL_GPU_TEST_REQUIRE=$$OTEL_GPU_TEST_REQUIRE,kernel; \
	fi; \
	export OTEL_GPU_TEST_REQUIRE; \
	set -x; $(PYTHON_VENV) -m pytest -m backends tests/backends tests/deploy $(PYTEST_ARGS)

check: check-generated ## Check types, lint, formatting and generated files
	$(PYTHON_VENV) -m ruff check
	$(PYTHON_VENV) -m ruff format --check
	$(PYTHON_VENV) -m mypy
	$(CLANG_FORMAT) --dry-run --Werror $(C_SOURCES)

format: setup ## Format everything
	$(PYTHON_VENV) -m ruff format
	$(CLANG_FORMAT) -i $(C_SOURCES)

# Silent if there is nothing to do.
bpf: $(STAMPS)/system ## Compile the BPF programs for all kernels and machines
	@$(MAKE) -sq -C bpf all || $(STEP) bpf "BPF programs for all machines" $(MAKE) $(JOBS) -C bpf all

bpf-host: $(STAMPS)/system
	@$(MAKE) -sq -C bpf host || $(STEP) bpf-host "BPF programs for this machine" $(MAKE) $(JOBS) -C bpf host

preload: $(STAMPS)/system ## Compile the libraries that programs load, for this machine
	@$(MAKE) -sq -C preload all || $(STEP) preload "libraries for this machine" $(MAKE) -C preload all

wire: setup bpf ## Generate otel_gpu/wire/__init__.py from bpf/events.h and preload/layout.h
	$(PYTHON_VENV) tools/generate_wire.py $(OBJECT)

preload-tables: setup ## Generate the preload library's copies of the probe table and of histogram bounds
	$(PYTHON_VENV) tools/generate_preload.py

semconv: setup ## Generate the names of spans, metrics and attributes
	$(PYTHON_VENV) tools/generate_semconv.py

docs: setup ## Generate the pages about configuration, commands and bounds, and the dashboards
	$(PYTHON_VENV) tools/generate_docs.py
	$(PYTHON_VENV) -m tools.grafana

check-generated: setup bpf
	$(PYTHON_VENV) tools/generate_wire.py --check $(OBJECT)
	$(PYTHON_VENV) tools/generate_preload.py --check
	$(PYTHON_VENV) tools/generate_semconv.py --check
	$(PYTHON_VENV) tools/generate_docs.py --check
	$(PYTHON_VENV) -m tools.grafana --check

bench: setup bpf ## Measure every bound that the design sets
	$(PYTHON_VENV) -m benchmarks

check-gpu: setup ## Run the tests that need a GPU, and fail without one
	OTEL_GPU_TEST_REQUIRE=kernel,gpu $(PYTHON_VENV) -m pytest -m gpu tests/gpu $(PYTEST_ARGS)

BASE ?= HEAD
golden: setup ## Compare the output for all recordings and examples with that of commit BASE
	rm -rf $(STAMPS)/golden
	$(PYTHON_VENV) -m tests.golden $(STAMPS)/golden --base $(BASE)

on-gpu-kit: setup bpf ## Fill the folder on-gpu-kit for `make on-gpu` on a machine without a registry
	$(PYTHON_VENV) -m tools.on_gpu --kit

# With the developers' Python, or the machine's own and the kit.
on-gpu: ## Check and measure on a GPU, within 8 minutes; on-gpu.json and on-gpu.log are in $OUT or on-gpu
	$(or $(wildcard $(PYTHON_VENV)),python3) tools/on_gpu.py $(ON_GPU_ARGS)

wheel: setup ## Build a wheel with the BPF objects inside
	$(PYTHON_VENV) -m pip wheel --no-deps --no-build-isolation --wheel-dir dist .

clean: ## Remove build outputs; .venv stays
	-$(MAKE) --no-print-directory -C bpf clean
	-$(MAKE) --no-print-directory -C preload clean
	rm -rf $(STAMPS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(STAMPS)/system: tools/setup.sh
	@$(STEP) system "system packages" sh tools/setup.sh system
	@mkdir -p $(@D) && touch $@

$(STAMPS)/tests-system: tools/setup.sh $(STAMPS)/system
	@$(STEP) tests "system packages of tests" sh tools/setup.sh tests
	@mkdir -p $(@D) && touch $@

$(STAMPS)/venv: tools/setup.sh requirements-dev.lock pyproject.toml $(STAMPS)/system
	@$(STEP) venv "Python packages in .venv" sh tools/setup.sh venv
	@mkdir -p $(@D) && touch $@

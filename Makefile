# SPDX-License-Identifier: Apache-2.0
# make demo, make test: everything from a clean clone. Variables: PYTHON (an interpreter), VENV (where it is installed), JAX (a version
# specification), CPP=no (leave the C++ tests out), LAB=no (leave the RDMA lab out), LIBRARIES=no (demo without vendors' libraries), ARGS
# (passed on to pytest, the demo or the bench).

PYTHON ?= python3
VENV ?= .venv
JAX ?= jax
CPP ?= yes
LAB ?= yes
LIBRARIES ?= yes
ARGS ?=

BUILD := $(VENV)/build
SOURCES := $(shell find cc jhetcc -type f -not -path '*/__pycache__/*' -not -path 'cc/tests/*') CMakeLists.txt pyproject.toml
PRESETS := release asan tsan
PIP := $(VENV)/bin/pip --quiet --disable-pip-version-check
export PATH := $(CURDIR)/$(BUILD)/bin:$(PATH)

.PHONY: demo test cpp-test fuzz libraries lint format bench docs clean

FETCH := $(BUILD)/bin/python tools/libraries.py --into $(VENV)/libraries

# Two pretend vendors, oneCCL and MPICH, beside two devices without a library. On one host the planner would rather let all ranks
# exchange at once, whatever their clusters; the demo shows what a job of several vendors does, so it asks for that.
demo: $(VENV)/.installed
ifeq ($(LIBRARIES),no)
	$(VENV)/bin/jhetcc launch --islands cpu:2,cpu:1,cpu:1 examples/train_mixed.py $(ARGS)
else
	@[ -e $(VENV)/libraries/oneccl/.fetched ] || echo "demo: fetching oneCCL and MPICH, 110 MB"
	@why=$$($(FETCH)) || { echo "demo: oneCCL and MPICH cannot be fetched, \`make demo LIBRARIES=no\` runs without them:" $$why >&2; exit 1; }
	JHETCC_ALGORITHM=hierarchical $(VENV)/bin/jhetcc launch --islands cpu:2,cpu:1@oneccl,cpu:1@oneccl,cpu:1@mpi,cpu:1@mpi \
	  examples/train_mixed.py $(ARGS)
endif

# Tests wait more than they compute, so two processes run them side by side, file by file; ARGS="-n 0" for one.
test: $(VENV)/.installed
	@$(FETCH) || true
ifneq ($(LAB),no)
	@tests/rdma_lab/lab.sh build
endif
ifneq ($(CPP),no)
	@tools/debian.sh
	@if [ -e /usr/include/doctest/doctest.h ] || [ -n "$$DOCTEST" ]; then $(MAKE) --no-print-directory cpp-test fuzz; fi
endif
	RDMA_LAB=$(LAB) $(VENV)/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# Vendors' collective libraries for tests and the demo: docs/libraries.md. ARGS="--only impi" fetches Intel MPI.
libraries: $(VENV)/.setup
	@$(FETCH) $(ARGS)

# Vendors' libraries are tested by the plain build only: under the sanitizers they report what lies inside them. Without them their tests
# are skipped, and say so. The sanitizers of older compilers do not bear the address randomisation of newer kernels.
cpp-test: $(VENV)/.setup
	@$(FETCH) || true
	@steady="$$(setarch -R true 2>/dev/null && echo 'setarch -R')"; \
	for preset in $(PRESETS); do \
	  folder="$(abspath $(VENV))/libraries"; [ $$preset = release ] || folder=/none; \
	  if [ -e $$folder/oneccl/.fetched ]; then export JHETCC_TEST_ONECCL=$$folder/oneccl; else unset JHETCC_TEST_ONECCL; fi; \
	  if [ -e $$folder/mpich/.fetched ]; then export JHETCC_TEST_MPI=$$folder/mpich; else unset JHETCC_TEST_MPI; fi; \
	  cmake --preset $$preset > /dev/null && cmake --build --preset $$preset && $$steady ctest --preset $$preset || exit 1; \
	done

# What strangers may say, made up by libFuzzer. FUZZ_SECONDS=600 looks longer.
fuzz: $(VENV)/.setup
	@tools/fuzz.sh $(or $(FUZZ_SECONDS),25)

lint: $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports
	git ls-files '*.cc' '*.h' | xargs $(VENV)/bin/clang-format --dry-run -Werror
	git ls-files | xargs $(VENV)/bin/codespell

format: $(VENV)/.lint
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .
	git ls-files '*.cc' '*.h' | xargs $(VENV)/bin/clang-format -i

# The peers go into places of their own; one that cannot be installed is named and left out.
bench: $(VENV)/.installed
	$(VENV)/bin/python bench/setup_peers.py --into .venv-bench
	$(VENV)/bin/python bench/collectives.py $(or $(ARGS),--targets --json out/bench.jsonl --plot out/bench.png)

# From elsewhere: the generator would import the source tree, which has no core.
docs: $(VENV)/.installed
	$(VENV)/bin/python -P -m jhetcc env --markdown > docs/options.md
	cd / && $(abspath $(VENV))/bin/python -P -c "import glob, sys; sys.path += glob.glob('$(abspath $(BUILD))/lib/python*/site-packages'); \
	  from nanobind.stubgen import main; main(['-m', 'jhetcc._core', '-o', '$(CURDIR)/jhetcc/_core.pyi'])"

clean:
	rm -rf build out .venv .venv-*

$(VENV)/.setup: pyproject.toml tools/setup.sh
	@tools/setup.sh '$(PYTHON)' '$(VENV)'
	@touch $@

# What pyproject.toml asks for to run, test and show the package.
$(VENV)/.packages: $(VENV)/.setup
	@$(VENV)/bin/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; print('\n'.join(p['dependencies'] + e['test'] + e['demo']))" > $(VENV)/requirements.txt
	$(PIP) install '$(JAX)' -r $(VENV)/requirements.txt
	@touch $@

# A regular wheel, built in a directory that stays: a change compiles only what it touches.
$(VENV)/.installed: $(VENV)/.packages $(SOURCES)
	@echo "building the core: some minutes the first time"
	@rm -rf $(VENV)/wheel
	$(BUILD)/bin/pip --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation --wheel-dir $(VENV)/wheel .
	$(PIP) install --force-reinstall --no-deps $(VENV)/wheel/*.whl
	@touch $@

$(VENV)/.lint: $(VENV)/.packages
	@$(VENV)/bin/python -c "import tomllib; print('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['lint']))" > $(VENV)/lint.txt
	$(PIP) install -r $(VENV)/lint.txt
	@touch $@

# make demo | test | soak | build | bench | format | docs | setup | asan | tsan | clean, from a
# fresh clone. Every target first installs what is missing (scripts/setup.sh: a moment when nothing
# is). CMake does the building: presets are in CMakePresets.json.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# One compiler for each core, but never more than the memory carries: a torch or CAF file needs
# about 0.7 GiB.
JOBS ?= $(shell awk -v cores="$$(nproc)" '/^MemAvailable/ { jobs = int($$2 / 734003); \
          if (jobs > cores) jobs = cores; if (jobs < 1) jobs = 1; print jobs }' /proc/meminfo)
GRAPH ?= examples/reverse_text/graph.toml
# Arguments for `primerl-graph run`: make demo RUN_ARGS="--max-steps 50"
RUN_ARGS ?=
# A filter of test names: make test TESTS=Router
TESTS ?= .

# ON makes warnings errors, as CI does: make test WERROR=ON. Empty: a build folder stays as it is.
WERROR ?=
export WERROR

export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

# Where `make install` puts programs, headers and libraries.
PREFIX ?= /usr/local

.PHONY: help setup setup-tests setup-soak build install demo test soak bench format docs asan tsan \
        cuda-check clean

help:
	@echo "make demo     train the example model in $(GRAPH), about a minute"
	@echo "make test     build everything and run all tests (TESTS=REGEX for some)"
	@echo "make soak     the same stories with more seeds and random ends (before a release)"
	@echo "make build    build/bin/primerl-graph and build/bin/primerl-worker"
	@echo "make install  programs, headers and libraries into PREFIX=/usr/local, for plugins"
	@echo "make bench    build and run the benchmarks"
	@echo "make format   clang-format over the tree"
	@echo "make docs     write the generated reference and the golden files of tests again"
	@echo "make setup    only install what is missing: Debian packages, PyTorch into .venv"
	@echo "make asan     units and simulations, AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make tsan     units and simulations, ThreadSanitizer"
	@echo "make cuda-check  compile the CUDA code on a machine without a CUDA device"
	@echo "make clean    remove the build folders (.venv stays)"

setup:
	@scripts/setup.sh

setup-tests:
	@scripts/setup.sh --tests

setup-soak:
	@scripts/setup.sh --soak

build: setup
	@scripts/build.sh dev $(JOBS) programs

install: build
	cmake --install build --prefix $(PREFIX)

cuda-check: setup
	@scripts/check_cuda.sh

demo: build
	build/bin/primerl-graph run $(GRAPH) $(RUN_ARGS)

test: setup-tests
	@scripts/build.sh dev $(JOBS) all
	@scripts/run_tests.sh build $(JOBS) '$(TESTS)'

soak: setup-soak
	@scripts/build.sh dev $(JOBS) all
	@scripts/run_tests.sh build $(JOBS) '$(TESTS)' soak

bench: setup-tests
	@scripts/build.sh dev $(JOBS) all
	@scripts/run_benches.sh build

format: setup
	@scripts/format.sh

# What tests compare with what the code says: docs/reference, docs/errors.md, tests/**/golden.
docs: setup
	@scripts/build.sh dev $(JOBS) language_test reference_test rehearsal_test
	PRIMERL_UPDATE_GOLDEN=1 build/bin/reference_test --gtest_brief=1
	PRIMERL_UPDATE_GOLDEN=1 build/bin/language_test --gtest_brief=1
	PRIMERL_UPDATE_GOLDEN=1 build/bin/rehearsal_test --gtest_brief=1 --gtest_filter='*Golden*'

asan tsan: setup-tests
	@scripts/build.sh $@ $(JOBS) all
	@scripts/run_tests.sh build-$@ $(JOBS) '$(TESTS)' 'unit|sim'

clean:
	rm -rf build build-asan build-tsan build-release build-cuda

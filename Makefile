# Everything happens in .venv, which is made on demand and again when the interpreter, the
# dependencies or their pins change. Choose another interpreter with PYTHON=python3.12.

PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
UV_OPTIONS ?=

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
MADE := $(VENV)/made-$(VERSION)
# A worker of pytest-xdist that starts a thread for each core only gets into the others' way. A file
# goes to one worker as a whole: what its tests share is made once, and a cluster is used by one.
WORKERS ?= 2

.PHONY: help demo test test-fast test-torch bench bench-scale lint lock locks slurm clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    a whole study, simulated, learned, predicted and reported, in a few minutes"
	@echo "make test-fast   lint, types and unit tests, in under three minutes"
	@echo "make test    lint, types and all tests"
	@echo "make test-torch TORCH=2.5.1   the tests with another torch; large downloads"
	@echo "make bench   the tables of speed and memory; bench-scale those of several processes"
	@echo "make lock    requirements.lock anew (UV_OPTIONS=--upgrade takes newer versions)"
	@echo "make locks   the lock of every image anew, from requirements.lock and launcher/catalog.yaml"
	@echo "make slurm   the job scripts of slurm/ anew"
	@echo "make clean   remove .venv, demo/ and caches"

demo: $(VENV)/has-model
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" ./demo.sh demo

lint: $(VENV)/has-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test-fast: lint
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile \
	    -m 'not slow and not container and not slurm' $(PYTEST_OPTIONS)

test: lint
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_OPTIONS)

# The tests with another torch, in an environment of its own: make test-torch TORCH=2.5.1. Its wheels
# bring gigabytes of CUDA. What torch pins itself is left to it, everything else is as locked.
TORCH ?= 2.5.1
OTHER = .venv-torch-$(TORCH)
PINNED_BY_TORCH = torch|triton|nvidia-.*|cuda-.*|sympy|mpmath

test-torch: $(OTHER)/has-dev
	OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest -n $(WORKERS) --dist loadfile \
	    $(PYTEST_OPTIONS)

$(OTHER)/has-dev: pyproject.toml requirements.lock
	$(PYTHON) -m venv --clear $(OTHER)
	grep -vE '^($(PINNED_BY_TORCH))==' requirements.lock > $(OTHER)/constraints.txt
	$(OTHER)/bin/python -m pip --disable-pip-version-check install \
	    --constraint $(OTHER)/constraints.txt 'torch==$(TORCH)' --editable '.[model,dev]'
	touch $@

bench: $(VENV)/has-model
	$(VENV)/bin/python benchmarks/speed.py
	$(VENV)/bin/python benchmarks/launch.py

bench-scale: $(VENV)/has-model
	$(VENV)/bin/python benchmarks/scale.py

$(MADE):
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(VENV)/has-model: $(MADE) pyproject.toml requirements.lock
	$(PIP) install --constraint requirements.lock --editable '.[model]'
	touch $@

$(VENV)/has-dev: $(MADE) pyproject.toml requirements.lock
	$(PIP) install --constraint requirements.lock --editable '.[model,dev]'
	touch $@ $(VENV)/has-model

# uv resolves for every interpreter at once. It must see the index, not a folder of local builds:
# a version with a local part (2.13.0+cpu) could not be installed elsewhere, hence the check.
lock: $(MADE)
	$(PIP) install uv
	cp requirements.lock .lock.new 2>/dev/null || touch .lock.new
	$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.10 \
	    --extra model --extra dev --no-header --no-annotate $(UV_OPTIONS) \
	    --output-file .lock.new pyproject.toml
	@if grep '==.*+' .lock.new; then echo "A pin of a local build; resolve without it."; exit 1; fi
	{ sed -n '/^#/p;/^#/!q' requirements.lock; grep -v '^#' .lock.new; } > .lock.out
	mv .lock.out requirements.lock
	rm .lock.new

# The lock of every image, with hashes, for the images' own Python.
locks: $(MADE)
	$(PIP) install uv PyYAML
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python containers/make_locks.py

# The job scripts of slurm/, from what `aam-launch submit` writes; a test holds them against it.
slurm: $(VENV)/has-dev
	$(VENV)/bin/python -m launcher.slurm.files slurm

clean:
	rm -rf $(VENV) .venv-torch-* demo bench build ./*.egg-info .lock.new .lock.out
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find aam launcher tests benchmarks -name __pycache__ -type d -exec rm -rf {} +

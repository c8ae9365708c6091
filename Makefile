# All targets use .venv, which is created on demand and again when the interpreter, the dependencies or
# their pins change. PYTHON=python3.12 chooses another interpreter.

PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
UV_OPTIONS ?=

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
MADE := $(VENV)/made-$(VERSION)
# Workers of pytest-xdist use one thread each (OMP_NUM_THREADS), so that they do not compete for cores. All
# tests of a file run in one worker (loadfile): their fixtures are made once, and one worker uses Slurm. The
# files with the longest tests start first (tests/conftest.py), so that the workers end at the same time.
WORKERS ?= 2
PYTEST = OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help demo demo-transformer picture test test-changed test-fast test-all test-qiime2 test-study test-torch bench bench-scale docs lint lock locks definitions clean
.DELETE_ON_ERROR:

help:
	@echo "Durations are of two cores; half as long, or twice, on other machines. The first makes .venv: 0.5 GB."
	@echo "make demo    the example study inspected, trained, predicted, and a small encoder: 35 CPU-seconds"
	@echo "make demo-transformer   then a transformer on it: 2 to 3 CPU-minutes"
	@echo "make test-changed   the quick tests of what differs from main (BASE=REVISION): a minute at most"
	@echo "make test-fast   lint, types and quick unit tests, after each change: 2 to 6 minutes"
	@echo "make test    lint, types and the tests of every change: 15 to 25 minutes; a third: PART=units, training, engines"
	@echo "make test-all    all tests, with coverage, and with other versions of torch: hours, large downloads"
	@echo "make test-torch TORCH=2.5.1   the tests with another torch; large downloads"
	@echo "make test-qiime2   the tests of the QIIME 2 plugin; Debian 12 as root"
	@echo "make test-study   the tests of the study without PyTorch, in an environment of its own: 3 minutes"
	@echo "make bench   measure speed and memory; bench-scale: several processes"
	@echo "make docs    build the documentation as a site: site/index.html"
	@echo "make picture   take the picture of README anew; needs chromium"
	@echo "make lock    update requirements.lock (UV_OPTIONS=--upgrade takes newer versions)"
	@echo "make locks   update the lock of every image, from requirements.lock and launcher/catalog.yaml"
	@echo "make definitions   generate the definitions of containers/ from launcher/catalog.yaml"
	@echo "make clean   remove .venv, demo/ and caches"

demo: $(VENV)/has-model
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" ./demo.sh demo

demo-transformer: $(VENV)/has-model
	[ -e demo/response/model ] || $(MAKE) demo
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" ./demo.sh transformer demo

# The picture of README; .ci/run compares its text with the report of the demo.
picture: demo
	$(VENV)/bin/python .ci/picture

lint: $(VENV)/has-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --explicit-package-bases benchmarks tests
	$(VENV)/bin/zizmor --offline --no-progress --quiet --min-severity medium .github

# Tests nearest to the files that differ from BASE; it needs no lint, which an editor or pre-commit runs.
BASE ?= main
test-changed: $(VENV)/has-dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.changed --base $(BASE) $(PYTEST_OPTIONS)

test-fast: lint
	$(PYTEST) -m 'not medium and not slow and not nightly and not container and not slurm' $(PYTEST_OPTIONS)

# PART is a third of it, for CI on several machines: units (with lint), training or engines.
test: $(if $(filter training engines,$(PART)),,lint) $(VENV)/has-dev
	$(PYTEST) -m $(SELECTED) $(PYTEST_OPTIONS)

FITS = tests/network tests/members tests/stack
SELECTED_units = 'not nightly and not container and not slurm' $(FITS:%=--ignore=%)
SELECTED_training = 'not nightly and not container and not slurm' $(FITS)
SELECTED_engines = 'not nightly and (container or slurm)'
SELECTED = $(or $(SELECTED_$(PART)),'not nightly')

# Everything, with the lines that the tests execute, and the tests of what differs between versions of torch.
# Tracing adds 80 % to the processor time of tests before Python 3.12, which has sys.monitoring.
test-all: lint $(VENV)/has-dev
	COVERAGE_CORE=$(COVERAGE_CORE) $(PYTEST) --cov=aam --cov=launcher --cov-report=term:skip-covered $(PYTEST_OPTIONS)
	.ci/torch_versions $(TORCH_VERSIONS)

COVERAGE_CORE := $(shell $(PYTHON) -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')
# Python 3.13 has no wheel of torch 2.4, and Python 3.14 none before 2.9.
TORCH_VERSIONS := $(shell $(PYTHON) -c 'import sys; v = sys.version_info; \
    print("2.4.1" if v < (3, 13) else "", "2.5.1 2.7.1" if v < (3, 14) else "", "2.15.0")')

# Tests of plugins/q2-aam with Debian's QIIME 2 and the system's Python; aam runs in .venv.
test-qiime2: $(VENV)/has-model
	AAM_EXECUTABLE=$(VENV)/bin/aam .ci/qiime2 .venv-qiime2

# The study without PyTorch, in an environment of its own: the quick tests that need no network.
STUDY = tests/evaluation tests/pipeline tests/report tests/serialization/test_stored_runs.py
test-study:
	$(PYTHON) -m venv --clear .venv-study
	.venv-study/bin/python -m pip --disable-pip-version-check install --quiet --constraint requirements.lock \
	    --editable '.[study]' pytest hypothesis
	! .venv-study/bin/python -c 'import torch' 2> /dev/null
	OMP_NUM_THREADS=1 .venv-study/bin/python -m pytest -q \
	    -m 'not network and not medium and not slow and not nightly and not slurm and not container' $(STUDY)

# The validator of research objects (RO-Crate), in an environment of its own, for a test. rocrate 0.11.0 has the
# context of RO-Crate 1.1, which the validator would look up on the web (.ci/validate_crates).
.venv-crate/has-validator: Makefile
	$(PYTHON) -m venv --clear .venv-crate
	.venv-crate/bin/python -m pip --disable-pip-version-check install --quiet roc-validator==0.13.0
	.venv-crate/bin/python -m pip --disable-pip-version-check install --quiet --no-deps rocrate==0.11.0
	touch $@

# Tests with another version of torch, in a separate environment: make test-torch TORCH=2.5.1. Its wheels
# include gigabytes of CUDA. Packages that torch pins follow torch, all others requirements.lock.
# .ci/torch_versions chooses another folder and installs only what some of the tests need.
TORCH ?= 2.5.1
OTHER ?= .venv-torch-$(TORCH)
OTHER_INSTALL ?= --editable '.[model,dev]'
PINNED_BY_TORCH = torch|triton|nvidia-.*|cuda-.*|sympy|mpmath

test-torch: $(OTHER)/has-dev
	OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest -n $(WORKERS) --dist loadfile \
	    $(PYTEST_OPTIONS)

$(OTHER)/has-dev: pyproject.toml requirements.lock
	$(PYTHON) -m venv --clear $(OTHER)
	grep -vE '^($(PINNED_BY_TORCH))==' requirements.lock > $(OTHER)/constraints.txt
	$(OTHER)/bin/python -m pip --disable-pip-version-check install \
	    --constraint $(OTHER)/constraints.txt 'torch==$(TORCH)' $(OTHER_INSTALL)
	touch $@

# With the report of the example study, trained here: 12 CPU-seconds.
SAMPLE = build/sample
docs: $(VENV)/has-dev
	rm -rf $(SAMPLE)
	$(VENV)/bin/aam example --output-dir $(SAMPLE)/study
	$(VENV)/bin/aam train $(SAMPLE)/study/table.biom $(SAMPLE)/study/metadata.tsv ph --group-column subject \
	    --taxonomy $(SAMPLE)/study/taxonomy.tsv --output-dir $(SAMPLE)/ph
	AAM_SAMPLE_REPORT=$(SAMPLE)/ph/report.html NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build
	@echo 'site/index.html; its search needs a server: $(VENV)/bin/python -m http.server --directory site'

bench: $(VENV)/has-model
	$(VENV)/bin/python benchmarks/speed.py
	$(VENV)/bin/python benchmarks/launch.py

bench-scale: $(VENV)/has-model
	$(VENV)/bin/python benchmarks/scale.py

# --clear removes everything in the folder: only an environment of this Makefile is replaced.
$(MADE):
	@if [ -e $(VENV) ] && ! ls $(VENV)/made-* > /dev/null 2>&1; then \
	    echo "'$(VENV)' exists and was not made by make, which would replace it; name another folder:" \
	        "make VENV=.venv-aam $(MAKECMDGOALS)" >&2; exit 1; fi
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

# PyTorch's CPU build where there is no driver of NVIDIA: the default one brings gigabytes of CUDA. Where its
# index does not answer within seconds, pip takes what it finds by default.
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
ANSWERS = import signal, urllib.request; signal.alarm(9); urllib.request.urlopen("$(CPU_INDEX)/torch/", timeout=5)
define CPU_TORCH
@if [ ! -e /proc/driver/nvidia ] && ! command -v nvidia-smi > /dev/null \
    && $(VENV)/bin/python -c '$(ANSWERS)' 2> /dev/null; then \
    $(PIP) install --timeout 60 --retries 1 --no-deps --index-url $(CPU_INDEX) \
        "$$(grep '^torch==' requirements.lock)" \
    || echo "The CPU build of PyTorch could not be installed; the default one is taken." >&2; fi
endef

SAYS = @echo "Installing PyTorch and the other packages of requirements.lock in $(VENV): 0.5 GB of downloads, minutes"

$(VENV)/has-model: $(MADE) pyproject.toml requirements.lock
	$(SAYS)
	$(CPU_TORCH)
	$(PIP) install --constraint requirements.lock --editable '.[model]'
	touch $@

$(VENV)/has-dev: $(MADE) pyproject.toml requirements.lock
	$(SAYS)
	$(CPU_TORCH)
	$(PIP) install --constraint requirements.lock --editable '.[model,dev]'
	touch $@ $(VENV)/has-model

# uv resolves for all interpreters at once. It has to use the package index and not a folder of local
# builds: a local version (2.13.0+cpu) could not be installed elsewhere, hence the check.
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

# Locks of the images, with hashes, for the Pythons of the images.
locks: $(MADE)
	$(PIP) install uv PyYAML
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python containers/make_locks.py

# Definitions of containers/, from the templates and the catalog; a test compares them.
definitions: $(MADE)
	$(PIP) install PyYAML
	$(VENV)/bin/python containers/make_definitions.py

clean:
	if ls $(VENV)/made-* > /dev/null 2>&1; then rm -rf $(VENV); fi
	rm -rf .venv-torch-* .venv-qiime2 .venv-study .venv-crate demo bench build site ./*.egg-info .lock.new .lock.out
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find aam launcher tests benchmarks -name __pycache__ -type d -exec rm -rf {} +

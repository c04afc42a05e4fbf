# `make demo` and `make test` are all a newcomer needs; each sets up what it needs itself.
VENV := .venv
PY := $(VENV)/bin/python
BASE_PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Beside what every lab needs: images of systemd hosts, journals of many hosts, the NUMA machine.
TEST_PACKAGES := mmdebstrap debian-archive-keyring systemd-journal-remote openssl \
  qemu-system-x86 kmod cpio zstd e2fsprogs chromium patchelf \
  zsh tcsh fish ksh mksh

# Tests that start hosts wait more than they compute: more workers than cores.
WORKERS ?= $(shell echo $$(($$(nproc) * 2 + 1)))

.PHONY: venv demo check test test-16k fresh-check lint types bench lab-setup test-setup clean

venv: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	@test -n "$(BASE_PYTHON)" || { echo "fleetmem needs Python 3.11 or newer (apt-get install python3)"; exit 1; }
	@$(BASE_PYTHON) -c 'import ensurepip, venv' 2>/dev/null || sh tests/lab_setup.sh python3-venv
	@test -x $(PY) || $(BASE_PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

lab-setup:
	@sh tests/lab_setup.sh

test-setup: venv
	@sh tests/lab_setup.sh $(TEST_PACKAGES)
	@$(PY) -m tests.pythons

demo: venv lab-setup
	@$(PY) -m tests.demo

# The daily loop: no root, no hosts.
check: venv lint types
	$(PY) -m pytest tests/unit -q -n $$(nproc)

test: venv test-setup lint types
	$(PY) -m pytest tests -n $(WORKERS)

# Both commands of the README on a bare Debian: what they need and do not set up shows here.
fresh-check: venv
	@sh tests/lab_setup.sh mmdebstrap debian-archive-keyring
	@$(PY) -m tests.fresh

# Slow, so not in `make test`: an emulated arm64 machine with two NUMA nodes and pages of 16 KiB.
test-16k: venv
	@sh tests/lab_setup.sh $$($(PY) -c 'from tests.lab.numa.arch import ARM64; print(ARM64.install)')
	@$(PY) -m tests.lab.numa.image arm64
	FLEETMEM_NUMA_ARCH=arm64 $(PY) -m pytest tests/lab/look/test_snapshot_numa.py tests/numa

lint: venv .types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@rm -rf .types/walls && mkdir -p .types/walls
	@cp -rL .types/fleetmem pyproject.toml .types/walls/
	cd .types/walls && ../../$(VENV)/bin/lint-imports --no-cache

types: venv .types
	MYPYPATH=.types $(VENV)/bin/mypy -p fleetmem

# Type checkers and the import linter do not see package-dir's mapping: a tree of links does.
.types:
	@mkdir -p .types/fleetmem
	@for d in agent controller playbooks; do ln -sfn ../../$$d .types/fleetmem/$$d; done
	@ln -sfn ../../fleetmem/__init__.py .types/fleetmem/__init__.py
	@ln -sfn ../../fleetmem/py.typed .types/fleetmem/py.typed

bench: venv test-setup
	@$(PY) -m benchmarks

clean:
	rm -rf $(VENV) .types build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

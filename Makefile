# make repro: everything from nothing to reports/report.html. make test: everything the tests need, and the tests.
PYTHON ?= python3.11
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: repro test seeds trap lint
.DELETE_ON_ERROR:

repro: .venv/installed
	dvc repro

test: .venv/installed
	pytest

lint: .venv/installed
	ruff check . && ruff format --check .

# The environment is complete once this file is there; a broken installation starts over.
.venv/installed: requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not installed; install Python 3.11 (Debian: apt-get install python3.11 python3.11-venv) or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "error: $(PYTHON) is not Python 3.11, for which the dependencies are pinned; name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3.11-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	.venv/bin/pip install --quiet --requirement requirements.txt || { echo "error: the dependencies could not be installed; see pip's message above, then run make again" >&2; exit 1; }
	.venv/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

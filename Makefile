# Every target sets up first; setting up again is quick when nothing changed.
PYTHON ?=
TORCH ?=
RECIPE ?= params/nano.yaml
DEMO_RUN ?= outputs/demo
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup setup-gpu setup-test demo test test-all lab bench ablations clean

help:
	@echo 'make setup   .venv with the proven versions         (PYTHON=python3.12, TORCH=cpu|cuda to choose)'
	@echo 'make setup-gpu  the same for an NVIDIA GPU, with vLLM and Unsloth; checks compiler, headers and disk first'
	@echo 'make demo    train and compare the small agent      (DEMO_RUN=outputs/demo, RECIPE=params/nano.yaml)'
	@echo 'make test    the quick suite: what is not slow      (PYTEST="-k chat" to narrow it)'
	@echo 'make test-all  the same and everything slow; an hour  (PYTEST="-k vllm" to narrow it)'
	@echo 'make lab     JupyterLab on notebooks/               (LAB="--port 8890")'
	@echo 'make bench   rollout speed against the peer, quick'
	@echo 'make ablations  the five ablations, then docs/ablations.md; hours  (ABLATIONS="--slots 2")'
	@echo 'make clean   remove .venv and caches, keep outputs/'

define set_up
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	    AGENTKIT_TORCH="$(TORCH)" exec "$$python" .ci/setup.py $(1); fi; done; \
	echo '[setup] agentkit needs Python 3.11, 3.12 or 3.13 with its venv module (Debian: python3-venv): install one and run' \
	     'this again, or name it, as in: make setup PYTHON=/path/to/python3.12' >&2; exit 1
endef

setup:
	$(call set_up)

setup-gpu:
	$(call set_up,gpu)

setup-test:
	$(call set_up,test)

# A finished stage is kept, so running it again goes on, or only shows the table of a finished run.
demo: setup
	@$(BIN)/agentkit run $(RECIPE) --run $(DEMO_RUN)

# A test file is one process' work; the slow ones begin first (tests/conftest.py). One thread of torch in each:
# processes with a thread for every core wait for each other.
pytest = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test: setup-test
	@$(pytest) -m 'not slow' $(PYTEST)

test-all: setup-test
	@$(pytest) $(PYTEST)

# Its settings keep JupyterLab from asking about news, and from looking for updates.
lab: setup
	@$(BIN)/jupyter lab --LabApp.app_settings_dir=.ci/jupyterlab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks $(LAB)

bench: setup
	@$(BIN)/python -m tests.benchmarks.rollouts --quick

# Goes on where it was interrupted; its figures need the Chromium of setup-test.
ablations: setup-test
	@$(BIN)/python .ci/ablations.py $(ABLATIONS)

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist *.egg-info unsloth_compiled_cache
	find . \( -path ./outputs -o -path ./.git \) -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) \
	  -prune -exec rm -rf {} +

# make demo      one simulated training step on a bare machine with Python >= 3.11
# make test      ruff, mypy and every test
# make lint      ruff and mypy alone
# make docs      the documentation site with its executed gallery, in docs/_build/html
# make validate  predictions against published step times; layouts trained on real processes against one process; searches against brute force; fast simulations against plain ones
# make bench     how fast the simulator is, and predictions against a job run here
#
# PYTHON=...      the interpreter of the virtual environment (found by itself otherwise)
# PIP_FLAGS=...   more flags for pip; where the default index has no CPU build of torch:
#                 make test PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"
# PYTEST_FLAGS=... more flags for pytest, such as "-x" or "--durations 10"

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install -q -q $(PIP_FLAGS)
PYTHON ?=
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
FIT := validation/data/fit/korthikanti_2022.jsonl validation/data/fit/megatron_readme_h100.jsonl
RESULTS := parasim-out/default

.PHONY: demo test lint docs validate bench clean

demo: $(VENV)/.installed
	@$(VENV)/bin/parasim run
	@echo
	@echo "The step as a picture:     $(RESULTS)/timeline.png and $(RESULTS)/memory.png"
	@echo "The step op by op:         $(RESULTS)/trace.pftrace, in https://ui.perfetto.dev"
	@echo "All the numbers:           $(RESULTS)/report.json"
	@echo "Change something:          $(VENV)/bin/parasim run --set recompute=full --set pipeline.schedule=gpipe"
	@echo "Start from a run file:     $(VENV)/bin/parasim run docs/examples/llama3-70b-64xh100.yaml"

# Tests that start processes of their own run after the others, which would keep the processors from them. Those of one group share such processes.
test: lint
	$(PY) -m pytest -q -n 2 -m "not processes" $(PYTEST_FLAGS)
	$(PY) -m pytest -q -n 2 --dist loadgroup -m processes $(PYTEST_FLAGS)

lint: $(VENV)/.test-installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# Warnings are errors; nothing is fetched while it builds.
docs: $(VENV)/.docs-installed
	$(PY) -m sphinx -b html -W --keep-going -q $(SPHINX_FLAGS) docs docs/_build/html
	@echo "The site: docs/_build/html/index.html"

validate: $(VENV)/.test-installed
	$(PY) -m validation published $(FIT)
	$(PY) -m validation numeric
	$(PY) -m validation tables tests/data/schedules/torch
	$(PY) -m validation search
	$(PY) -m validation equality

bench: $(VENV)/.test-installed
	$(PY) -m validation bench
	$(PY) -m validation job

clean:
	rm -rf $(VENV) parasim-out dist build docs/_build docs/lectures docs/sg_execution_times.rst

# The checkout is installed in place, so that an edit or a pull needs no second install; only new dependencies do.
$(VENV)/.installed: pyproject.toml | $(PY)
	@echo "installing parasim into $(VENV) (about half a minute)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.test-installed: pyproject.toml constraints.txt | $(PY)
	@echo "installing parasim and what its tests need into $(VENV) (a minute or two)"
	@$(PIP) -e '.[test]' -c constraints.txt
	@touch $@ $(VENV)/.installed

$(VENV)/.docs-installed: pyproject.toml constraints.txt | $(PY)
	@echo "installing what the documentation needs into $(VENV)"
	@$(PIP) -e '.[docs]' -c constraints.txt
	@touch $@ $(VENV)/.installed

$(PY):
	@for python in $(CANDIDATES); do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    $$python -m venv $(VENV) && exit 0; \
	    rm -rf $(VENV); echo "make: $$python cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; \
	  fi; \
	done; \
	echo "make: parasim needs Python >= 3.11, and none of these is: $(CANDIDATES) (python3 is $$(python3 --version 2>&1))." >&2; \
	echo "make: name another: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1

# Shardproof: install, demo, test. `make help` lists the targets.
#
# Everything is installed into .venv from the locks under requirements/; stamp files in .venv make a
# second run of any target skip what is already there.

VENV := .venv
BIN := $(VENV)/bin
STACKS := .venv-stacks
DEMO := build/demo
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

PYTHON ?= $(shell for p in python3.11 python3 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' \
		>/dev/null 2>&1 && { echo $$p; break; }; done)

# Compiled modules are kept also where the environment says otherwise: readers, solvers and commands
# are processes of their own, and compiling what they import is half a second of each.
export PYTHONDONTWRITEBYTECODE :=

# Two processes, as many as CI has cores. Not --dist loadgroup or loadscope: in pytest-xdist
# 3.8.0 they hang when a worker dies (its issues 1323, 1378), and that is how a hung test is ended.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -q
PARALLEL := $(PYTEST) -n $(WORKERS) --dist worksteal
# Ray tests run after the others and in one process: a cluster takes the machine for itself.
# pytest exits with 5 where a selection is empty.
NONE_IS_FINE := || [ $$? -eq 5 ]

# Type checkers read `shardproof` as it is installed: the floors are folders in it.
FLOORS := engine solvers partition frontends checker cluster diagnosis mutation configs
TYPES := build/types

.DELETE_ON_ERROR:
.PHONY: help venv demo docs examples test test-all test-stacks lint format lock clean

help:
	@echo 'make demo      catch a bug in a GPT and prove it mended; prove Llama-3 8B and DeepSeek-V3 671B'
	@echo 'make test      lint, types and the tests CI runs'
	@echo 'make test-all  the same with the slow tests'
	@echo 'make test-stacks  tests on training stacks, in an environment of their own'
	@echo 'make lint      ruff and mypy only'
	@echo 'make docs      the documentation site, into build/site'
	@echo 'make examples  write the sample plans anew'
	@echo 'make format    let ruff rewrite the sources'
	@echo 'make venv      only install, into .venv'
	@echo 'make lock      resolve the dependencies of pyproject.toml anew'
	@echo 'make clean     remove .venv, build/ and caches'

venv: $(VENV)/.runtime

$(VENV)/.created:
	@if [ -z "$(PYTHON)" ]; then \
		echo 'Shardproof needs Python 3.11 with the venv module; no python3.11, python3 or python' \
			'on PATH is one. Install it (Debian, Ubuntu: python3.11-venv) or run make' \
			'PYTHON=/path/to/python3.11.' >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and \
		"Shardproof needs Python 3.11; $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The editable install only needs repeating when pyproject.toml changes: it points at this folder.
$(VENV)/.runtime: $(VENV)/.created requirements/runtime.lock pyproject.toml
	$(PIP) install --quiet -r requirements/runtime.lock
	$(PIP) install --quiet --no-deps -e .
	@touch $@

$(VENV)/.test: $(VENV)/.runtime requirements/test.lock
	$(PIP) install --quiet -r requirements/test.lock
	@touch $@

# A plan that is wrong, what is found, the mended plan; then two large ones. Exit code 1 is the verdict
# that is expected of the first.
SAMPLES := examples/plans
demo: venv
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	@echo '--- a GPT on 4 ranks; somebody forgot an all-reduce ---'
	$(BIN)/shardproof verify $(SAMPLES)/gpt-no-all-reduce --out $(DEMO)/run-wrong || [ $$? -eq 1 ]
	$(BIN)/shardproof report $(DEMO)/run-wrong
	@echo '--- with the all-reduce where the repair puts it ---'
	$(BIN)/shardproof verify $(SAMPLES)/gpt --out $(DEMO)/run-mended
	@echo '--- larger plans ---'
	$(BIN)/shardproof plan llama3-8b --dp 2 --tp 2 --pp 2 --microbatches 2 -o $(DEMO)/8b
	$(BIN)/shardproof verify $(DEMO)/8b --out $(DEMO)/run-8b
	$(BIN)/shardproof plan deepseek-v3-671b --parallel d3 -o $(DEMO)/671b
	$(BIN)/shardproof verify $(DEMO)/671b --out $(DEMO)/run-671b

# Offline: nothing is fetched, and a link that leads nowhere is an error.
docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

examples: venv
	$(BIN)/python examples/gpt.py --save $(SAMPLES)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@rm -rf $(TYPES) && mkdir -p $(TYPES)/shardproof
	@for part in $(CURDIR)/shardproof/* $(FLOORS:%=$(CURDIR)/%); do \
		ln -s $$part $(TYPES)/shardproof/; done
	$(BIN)/mypy

# Steps are recorded in forks of the test process, which take longer the more it holds: they have
# fresh workers.
RECORDED := tests/shardproof/torch
test: lint docs
	$(PARALLEL) -m 'not slow and not ray' --ignore=$(RECORDED)
	$(PARALLEL) -m 'not slow and not ray' $(RECORDED)
	$(PYTEST) -m 'ray and not slow' $(NONE_IS_FINE)

test-all: lint docs
	$(PARALLEL) -o faulthandler_timeout=3600 -m 'not ray'
	$(PYTEST) -o faulthandler_timeout=3600 -m ray $(NONE_IS_FINE)

# Stacks have an environment of their own; tests of what is not installed there are skipped by name.
test-stacks: $(STACKS)/.created
	PYTHONPATH=$(CURDIR) $(STACKS)/bin/python -m pytest -q -rs -o addopts= tests/stacks

# The lock has all that they need: without their own wishes, which name builds for GPUs.
$(STACKS)/.created: requirements/stacks.lock
	$(PYTHON) -m venv $(STACKS)
	$(STACKS)/bin/python -m pip install --quiet --no-deps -r requirements/stacks.lock
	touch $@

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Resolved in a venv of its own. torch loses its local label (+cpu): the registry has none.
COMPILE := build/lock/bin/pip-compile --quiet --upgrade --strip-extras --allow-unsafe --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host
lock: $(VENV)/.created
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet pip-tools==7.6.2
	$(COMPILE) --annotation-style=line --extra ray --extra plots \
		-o requirements/runtime.lock pyproject.toml
	$(COMPILE) --no-annotate --extra ray --extra plots --extra docs --extra test -c requirements/runtime.lock \
		-o requirements/test.lock pyproject.toml
	sed -i 's/^\(torch==[0-9.]*\)+.*/\1/' requirements/test.lock
	for lock in runtime test; do \
		sed -i "1i # Made by 'make lock' from pyproject.toml, for Python 3.11; do not edit." \
			requirements/$$lock.lock; done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

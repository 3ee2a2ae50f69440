# Everything that a clone needs, from nothing but Python with venv and pip.
# PYTHON=python3.13 chooses the Python of a new .venv; ARGS is passed on: make test ARGS="-k fork".

PYTHON ?= python3
ARGS ?=

VENV := .venv
# Each worker starts a Redis of its own.
PARALLEL := -n auto --dist worksteal

# Else each worker compiles all tests anew, and each process that a test starts the whole package.
unexport PYTHONDONTWRITEBYTECODE

RUN := $(VENV)/bin/python
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check

.PHONY: help demo tour test check fix lint coverage prove break model peers bench bench-quick screenshots
.DEFAULT_GOAL := help
# pip can't run twice in one environment.
.NOTPARALLEL:

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.server ## the example project, with a Redis of its own; on a terminal, then the tour
	$(RUN) example_project/manage.py demo $(ARGS)

tour: $(VENV)/.server ## a page that shows locks live, and the admin, until Ctrl-C
	$(RUN) example_project/manage.py tour $(ARGS)

test: $(VENV)/.test ## the quick tests, for each change; REDISLOCK_SERVER chooses the Redis
	$(RUN) -m pytest $(PARALLEL) -m "not slow" $(ARGS)

check: $(VENV)/.test ## all tests
	$(RUN) -m pytest $(PARALLEL) $(ARGS)

fix: $(VENV)/.test ## what ruff can mend by itself: its fixes, and the format
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

lint: $(VENV)/.test ## ruff and mypy, and luacheck if it is installed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m devtools.luacheck

# Those that count bytecodes trace what they run, as coverage does.
coverage: $(VENV)/.coverage ## which lines and branches of the package the quick tests run
	$(RUN) -m pytest $(PARALLEL) -m "not slow" --cov --cov-report=term:skip-covered \
	  --deselect tests/test_bytecodes.py $(ARGS)

.PHONY: docs dist
docs: $(VENV)/.test ## the site, into docs/_build
	$(RUN) -m sphinx -W --keep-going -n -q docs docs/_build $(ARGS)
	@echo "It begins at docs/_build/index.html"

# All times in it are that of the commit, so another build of that commit has the same bytes.
dist: $(VENV)/.dist ## sdist and wheel into dist/, as a release has them
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	  $(VENV)/dist/bin/python -m build --no-isolation --outdir dist

prove: $(VENV)/.prove $(if $(findstring --peers,$(ARGS)),$(VENV)/.peers) ## ten minutes of kills, stops, lost replies and restarts, judged twice; docs/proof.md
	$(RUN) -m tests.proof $(ARGS)

break: $(VENV)/.test ## N=12 takes a piece out of a copy, and shows what goes wrong; without N, the list
	$(RUN) -m devtools.plant $(or $(N:%=--show %),$(ARGS:%=--show %),--list)

model: $(VENV)/.test ## every state of the protocol's model; needs spin and a C compiler
	$(RUN) -m devtools.model $(ARGS)

peers: $(VENV)/.peers ## scenarios and torture beside other libraries, into docs/peers.md
	$(RUN) -m tests.peers --write

bench: $(VENV)/.bench ## what a lock costs, beside others, into docs/benchmarks.md and docs/capacity.md; a quarter of an hour
	$(RUN) -m benchmarks $(ARGS)

bench-quick: $(VENV)/.bench ## the targets of the locks in three minutes, beside those of docs/benchmarks.md
	$(RUN) -m benchmarks quick

screenshots: $(VENV)/.test ## the pictures in docs/images; needs chromium
	$(RUN) -m pytest tests/browser/screenshots.py $(ARGS)

# The stamps say what has been installed; a change of pyproject.toml makes them stale.
# The tests need everything that the demo needs, hence both stamps.
$(VENV)/.server: pyproject.toml $(VENV)/.made
	@echo "Installing what the demo needs into $(VENV)"
	@$(INSTALL) --editable '.[server]'
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.pip
	@echo "Installing what the tests need into $(VENV)"
	@$(INSTALL) --editable . --group test
	@touch $(VENV)/.server $@

$(VENV)/.coverage: $(VENV)/.test
	@echo "Installing coverage into $(VENV)"
	@$(INSTALL) --editable . --group test --group coverage
	@touch $@

$(VENV)/.prove: pyproject.toml $(VENV)/.pip
	@echo "Installing what the proof needs into $(VENV)"
	@$(INSTALL) --editable '.[server]' --group prove
	@touch $(VENV)/.server $@

$(VENV)/.peers: $(VENV)/.test
	@echo "Installing the libraries to compare with into $(VENV)"
	@$(INSTALL) --editable . --group test --group peers
	@touch $@

$(VENV)/.bench: $(VENV)/.peers
	@echo "Installing what the benchmarks need into $(VENV)"
	@$(INSTALL) --editable . --group test --group peers --group bench
	@touch $@

# pip knows dependency groups from 25.1 on. A new .venv has the pip that comes with its Python, and that
# of Python 3.13 and before may be older.
$(VENV)/.pip: $(VENV)/.made
	@$(INSTALL) 'pip>=25.1'
	@touch $@

# The tools that build what is published: in an environment of their own, each with the version and
# the hash that its file names. Wheels only, since an sdist would fetch tools that no file names.
$(VENV)/.dist: .github/requirements/build.txt $(VENV)/.made
	@echo "Installing the tools that build the package into $(VENV)/dist"
	@$(PYTHON) -m venv --clear $(VENV)/dist
	@$(VENV)/dist/bin/python -m pip install --quiet --disable-pip-version-check \
	  --require-hashes --only-binary :all: --requirement $<
	@touch $@

# Debian and Ubuntu ship Python without ensurepip, and `python3 -m venv` then leaves half a .venv
# behind: so ask before, and let a stamp say that it is whole.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no $(PYTHON). Install Python 3.11 or newer, or name it: make PYTHON=python3.13 ..."; \
	  exit 1; } >&2
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("django-redislock needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name a newer one: make PYTHON=python3.13 ..." % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv"; \
	  exit 1; } >&2
	@echo "Making $(VENV) with `$(PYTHON) --version`"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

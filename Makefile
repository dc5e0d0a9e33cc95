# Two commands: `make demo` shows timerd at work, `make test` proves it. Both make .venv first, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test lint types imports sim mutations check clean

setup: $(STAMP)

$(STAMP): requirements.txt requirements-dev.txt pyproject.toml clients/python/pyproject.toml
	@echo "setting up $(VENV) from the pinned requirements (once; about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e clients/python
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m examples.feeds --demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

sim: $(STAMP)
	$(BIN)/python -m tests.sim --seeds 1-60 --jobs 2
	$(BIN)/python -m tests.sim cluster --seeds 1-40 --jobs 2

mutations: $(STAMP)
	$(BIN)/python -m tests.mutations --jobs 2

check: lint types imports sim test

clean:
	rm -rf $(VENV)

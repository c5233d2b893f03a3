# `make demo` and `make test` are all a newcomer needs; both work in a fresh clone with Python 3.10 or newer.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Tests and benchmarks start many processes. Python must keep compiled modules, also where the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=

help:  ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMP)  ## install, then run the whole job on the demo corpus: about two minutes
	$(BIN)/nmt demo
	$(BIN)/nmt prepare demo
	$(BIN)/nmt train demo
	$(BIN)/nmt translate runs/demo demo/test.en | $(BIN)/nmt score - --ref demo/test.fr
	$(BIN)/nmt inspect runs/demo "I like the green cat."
	@echo
	@echo "demo/ is the corpus, data/demo the prepared data, runs/demo/model the model. To try next:"
	@echo "  echo 'The cat is in the garden.' | $(BIN)/nmt translate runs/demo"
	@echo "  $(BIN)/nmt inspect runs/demo                # what the model is"
	@echo "  $(BIN)/nmt train demo --minutes 3           # train it further"
	@echo "  $(BIN)/nmt recipes                          # other experiments"
	@echo "  $(BIN)/nmt prepare --help                   # your own files"

test: $(STAMP)  ## install, then run the tests
	$(BIN)/python -m pytest -n auto --dist worksteal

# The tests that `make test` leaves out. They run one after the other, as some start processes on all cores.
test-slow: $(STAMP)  ## install, then run the tests that take long, and say why tests are skipped; OPTIONS=tests/cli runs a part
	$(BIN)/python -m pytest -m torture -rs $(OPTIONS)

torture: $(STAMP)  ## break nmt on purpose, for hours; OPTIONS="--share 0.01" is a sample, OPTIONS=--help says more
	PYTHONPATH=tests $(BIN)/python -m torture $(OPTIONS)

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

audit: $(STAMP)  ## look the versions of constraints.txt up in the list of known weaknesses; needs a network
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip-audit -r constraints.txt --no-deps --disable-pip

docs: $(STAMP)  ## write the generated parts of docs/, then build the site build/site/index.html
	$(BIN)/python tools/recipe_keys.py docs/recipe.md
	$(BIN)/python tools/command_reference.py docs/commands.md
	$(BIN)/python tools/licenses.py docs/licenses.md
	$(BIN)/sphinx-build -q -W -c docs . build/site
	@echo "the site: build/site/index.html"

learn: $(STAMP)  ## run the claims of nmt learn, and write learn.html: minutes
	$(BIN)/nmt learn --all --html learn.html --force

# The benchmarks that need no trained run. The first lines of the others say what they need.
BENCH := prepare score memory search train_step rnn processes train sentences
bench: $(STAMP)  ## measure, as ratios, and write benchmarks/results/*.json: twenty minutes, best on a quiet machine
	@for name in $(BENCH); do echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py || exit 1; done
	@$(BIN)/python benchmarks/record.py

bench-rivals: $(STAMP)  ## install other programs into build/rivals and compare them with nmt, in turns: hours; OPTIONS=--help
	PYTHONPATH=benchmarks $(BIN)/python -m rivals $(OPTIONS)

clean:  ## remove what make made
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

# Installs again when pyproject.toml or constraints.txt has changed.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "nmt needs Python 3.10 or newer: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (torch is large: minutes, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

.PHONY: help demo test test-slow torture lint audit docs learn bench bench-rivals clean

# Two commands set everything up on a fresh machine: `make demo` runs the main job, `make test` passes the tests.
# Python 3.10 or newer with venv, and make; nothing else has to be there.
#   make PYTHON=python3.12 ...    another interpreter      make DATA=DIR bench    benchmarks that need data

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA ?=
DEMO ?= demo-collection
STEP = @printf '\n\033[1m== %s\033[0m\n'
CLOCK = @start=$$(date +%s); set -e; {
DONE = ; }; printf '   (%s s)\n' $$(($$(date +%s) - start))

.PHONY: demo install models check test docs bench clean

demo: models
	$(STEP) "Reading examples/manuals into $(DEMO)"
	$(CLOCK) rm -rf "$(DEMO)"; $(BIN)/bifolio ingest examples/manuals -c "$(DEMO)" $(DONE)
	$(STEP) "bifolio search $(DEMO) 'Which valve closes first?' -k 2"
	$(CLOCK) $(BIN)/bifolio search "$(DEMO)" "Which valve closes first?" -k 2 $(DONE)
	$(STEP) "bifolio ask $(DEMO) 'Which valve closes first?'"
	$(CLOCK) $(BIN)/bifolio ask "$(DEMO)" "Which valve closes first?" $(DONE)
	$(STEP) "bifolio ask $(DEMO) 'How much power does the small pump need?' --style short"
	$(CLOCK) $(BIN)/bifolio ask "$(DEMO)" "How much power does the small pump need?" --style short $(DONE)
	@printf '\nNow your own: %s/bifolio ingest PATH... -c NAME, then %s/bifolio ask NAME "QUESTION"\n' $(BIN) $(BIN)

install: $(VENV)/.installed

# torch comes first and alone, in the build that constraints.txt names, so that nothing else brings another one.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(STEP) "Installing bifolio and what it needs into $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "bifolio needs Python 3.10 or newer, this is " + sys.version)'
	$(CLOCK) $(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch; \
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'; \
	touch $@ $(DONE)
	@printf '   %s MB installed\n' "$$(du -sm $(VENV) | cut -f1)"

models: install
	$(STEP) "Default models (fetched once, then taken from the cache)"
	$(CLOCK) $(BIN)/bifolio models pull $(DONE)

check: install
	$(STEP) "ruff and mypy"
	$(CLOCK) $(BIN)/ruff check . ; $(BIN)/ruff format --check . ; $(BIN)/mypy $(DONE)

test: models
	$(STEP) "pytest"
	$(CLOCK) $(BIN)/python -m pytest $(DONE)

docs: install
	$(STEP) "docs/cli.md from the command line's own help"
	$(CLOCK) $(BIN)/python docs/generate.py $(DONE)

bench: models
	$(STEP) "Ingest beside its raw encoder"
	$(CLOCK) $(BIN)/python benchmarks/ingest.py docs examples --quick --json $(DONE)
	$(STEP) "Recall"
	@if [ -n "$(DATA)" ]; then $(BIN)/python benchmarks/recall.py --data "$(DATA)" --quick --json; \
	else echo "skipped: needs data, give make DATA=DIR bench"; fi

clean:
	rm -rf $(VENV) $(DEMO) .mypy_cache .ruff_cache .pytest_cache .hypothesis

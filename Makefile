# `make demo` and `make test` need Python 3.11 or newer and nothing else; `test-all` also x86_64 Linux and a browser.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Most tests wait for clocks and processes; more than two at a time would disturb those that measure.
IN_PARALLEL := --numprocesses 2 --dist loadfile
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install

.PHONY: demo test test-all chromium lint lock clean

demo: .venv/installed ## the toy ledger against the mock server, under every policy: do they agree?
	@rm -rf runs/demo
	$(BIN)/tokentick agree toy --preset head-of-line --policy all --out runs/demo

test: .venv/installed-dev ## all tests that need no other server
	$(BIN)/python -m pytest $(IN_PARALLEL)

test-all: .venv/installed-real chromium ## all tests, also those against a real server and in a real browser
	$(BIN)/python -m pytest $(IN_PARALLEL)
	$(BIN)/python -m pytest tests/real
	$(BIN)/python -m pytest tests/browser

chromium: ## a browser for tests/browser, if there is none; needs root, or sudo without a password
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	command -v apt-get >/dev/null && if [ "$$(id -u)" = 0 ]; then as_root=; else as_root="sudo -n"; fi && \
	echo "installing chromium" && \
	$$as_root apt-get -qq update >/dev/null 2>&1 && \
	$$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null 2>&1 || \
	{ echo "tests/browser needs a browser: install chromium, chromium-browser or google-chrome"; exit 1; }

lint: .venv/installed-dev ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml .lock/base.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tokentick needs Python 3.11 or newer: make PYTHON=...")'
	@echo "installing into .venv"
	@$(PYTHON) -m venv .venv
	@$(PIP) --require-hashes -r .lock/base.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

.venv/installed-dev: .venv/installed .lock/dev.txt
	@$(PIP) --require-hashes -r .lock/dev.txt
	@touch $@

.venv/installed-real: .venv/installed-dev .lock/real.txt
	@$(PIP) --require-hashes -r .lock/real.txt
	@touch $@

lock: ## pin what pyproject.toml allows today (needs uv)
	uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --extra build -o .lock/base.txt
	uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --extra build --extra dev -c .lock/base.txt -o .lock/dev.txt
	uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --extra build --extra real --extra browser -c .lock/dev.txt -o .lock/real.txt

clean:
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

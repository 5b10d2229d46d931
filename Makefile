# Needs git, make and Python >= 3.11. Installs into .venv, again only after pyproject.toml has changed.

PYTHON := .venv/bin/python
VERSIONS := 3.13 3.12 3.11
INSTALL := -m pip install --quiet --disable-pip-version-check --editable
# The compiled part of xgrammar is all that the tests need: its Python part wants torch.
XGRAMMAR := -m pip install --quiet --disable-pip-version-check --no-deps xgrammar==0.2.8 'apache-tvm-ffi>=0.1.11'
comma := ,
SEED := 1
COUNT := 2000

# The interpreters that may be of version $(1).
candidates = python$(1) $(wildcard $(HOME)/.pyenv/versions/$(1).*/bin/python)

# Shell: the first of $(1) that runs (a pyenv shim may not), is new enough and can make environments; or nothing.
find_python = for python in $(1); do \
	if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$python; break; fi; done

.PHONY: help demo test check bench parity test-all clean $(VERSIONS:%=test-%)

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: .venv/.installed-demo ## Read labels from a server in raw and in processed mode
	@$(PYTHON) examples/read_labels.py

test: .venv/.installed-test-clients ## Run the tests, those with real clients too
	$(PYTHON) -m pytest

check: .venv/.installed-dev-test ## Check format, lint and types
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m ruff check
	$(PYTHON) -m mypy

bench: .venv/.installed-test ## Measure speed, side by side with a bare app
	$(PYTHON) bench/run.py

parity: .venv/.installed-test ## Compare with the real vLLM, installed in ORACLE=DIR (docs/parity.md)
	@test -n "$(ORACLE)$(COMPARE)" || { echo "make parity ORACLE=DIR, an installation of vLLM 0.32.0" >&2; exit 1; }
	$(PYTHON) tests/parity/run.py --seed $(SEED) --count $(COUNT) \
	$(if $(ORACLE),--oracle $(ORACLE)) $(if $(COMPARE),--compare)

test-all: $(VERSIONS:%=test-%) ## Run the tests on each of Python 3.11, 3.12 and 3.13 that is here
	@for version in $(VERSIONS); do \
	test -e .venvs/$$version || echo "Python $$version: not tested, there is none here"; done

clean: ## Remove what was installed and built
	rm -rf .venv .venvs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/pip:
	@python=$$($(call find_python,python3 $(foreach version,$(VERSIONS),$(call candidates,$(version))))); \
	test -n "$$python" || { echo "There is no Python >= 3.11 with venv on the PATH." >&2; exit 1; }; \
	$$python -m venv .venv

# .installed-test-clients: the extras test and clients are there.
.venv/.installed-%: pyproject.toml | .venv/bin/pip
	@echo "Installing .[$(subst -,$(comma),$*)] into .venv"
	@$(PYTHON) $(INSTALL) '.[$(subst -,$(comma),$*)]'
	@$(if $(findstring test,$*),$(PYTHON) $(XGRAMMAR))
	@touch $@

$(VERSIONS:%=test-%): test-%: .venvs/%/.installed
	@! test -e .venvs/$*/bin/python || { echo "Python $*:"; .venvs/$*/bin/python -m pytest; }

.venvs/%/.installed: pyproject.toml
	@python=$$($(call find_python,$(call candidates,$*))); test -z "$$python" || { \
	test -e .venvs/$*/bin/pip || $$python -m venv .venvs/$*; \
	echo "Installing .[test,clients] into .venvs/$*"; \
	.venvs/$*/bin/python $(INSTALL) '.[test,clients]' && .venvs/$*/bin/python $(XGRAMMAR) && touch $@; }

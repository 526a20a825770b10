# make learn   everything from nothing: environment, model, JupyterLab on notebooks/ (learn.mk has it)
# make test    the same environment: ruff, mypy, every test (notebooks up to date: MINIPAGED_CHECK_BUILT=1)
# make quick   ruff, mypy, the engine's tests and those of the chapters that you touched: the inner loop
# make build   notebooks from notebooks/source/
# make check   ruff, mypy, and whether the notebooks are up to date; no tests

EXTRAS := dev,fast
# The formatter's; kernels, tests, solutions, exercises and notebooks are laid out by hand, for the reader.
FORMATTED := minipaged tools setup.py

include learn.mk

.PHONY: test quick build check lint

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

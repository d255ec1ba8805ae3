# Every target creates the environment that it needs, so any target can be the first command after a clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.complete
SEED   ?= 1
WIRE   ?= fencepost
NEEDED := Fencepost needs Python 3.11 or newer. Choose one with make PYTHON=/path/to/python3

# Apache Kafka's jars, and what is tested with them: stories of tests/kafka_bridge, and all that needs Java.
MAVEN  := tests/kafka_clients
JARS   := $(MAVEN)/target/.complete
STORIES := $(addprefix tests/kafka_bridge/test_,stories.py broken_brokers.py access.py consumer_protocol.py)
# Go's and C's clients are tested where their tools are installed.
ABSENT := $(foreach tool,go kcat,$(if $(shell command -v $(tool)),,--ignore=$(MAVEN)/test_$(tool).py))

.PHONY: help env demo test pytest thorough lint format screenshots kafka-clients kafka-jars stores oracle attack sweep bench docs reference clean

help:
	@echo 'make env     create the environment in $(VENV) with PYTHON=$(PYTHON)'
	@echo 'make demo    run a pipeline over real data, kill its processes many times, and check its output'
	@echo 'make test    check every change: format, lint, types, architecture, tests'
	@echo 'make thorough  run the tests that make test leaves out because they take long: pages in a browser, kills of'
	@echo '             Spark, random worlds, the demonstration without a protection, quick benchmarks'
	@echo 'make lint    run the static checks; make format fixes what it can'
	@echo 'make kafka-clients  run Java clients, tools, Streams, Connect and MirrorMaker of Apache Kafka against the broker;'
	@echo '             needs a JDK and Maven; runs franz-go and kcat, too, where Go and kcat are'
	@echo 'make stores  read directories in fake-gcs-server, Azurite and HDFS; installs each where its tools are'
	@echo 'make oracle  compare Fencepost with recorded answers of Apache Kafka; FILES="..." replays others; WIRE=kafka'
	@echo 'make attack  attack a broker on loopback while a client checks every record; SEED=2 draws other requests'
	@echo 'make sweep   300 kills, 90 outages of a group, 10,000 simulated clusters that lose power, every bit of a'
	@echo '             directory, 20 kills of a stream; SEED=2'
	@echo 'make bench   measure client and broker against peers, and the speed of the simulator;'
	@echo '             after make kafka-jars, Apache Kafka is one of the peers'
	@echo 'make screenshots  store the pictures of the lab that tests compare with; needs chromium'
	@echo 'make docs    generate tables and diagrams of the docs, and the blocking client'
	@echo 'make reference  build the API reference in build/reference/site'
	@echo 'make clean   remove the environment and every cache'

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt tools/environment.py
	@command -v $(PYTHON) >/dev/null || { echo '$(PYTHON) is not installed. $(NEEDED)' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON) is too old. $(NEEDED)")'
	@$(PYTHON) tools/environment.py $(VENV)
	@touch $@

demo: env
	$(BIN)/fencepost demo $(DEMO)

# Node scans its young objects whenever 16 MB are full; with 128 MB the types take a fifth less of the processor.
lint: export NODE_OPTIONS = --max-semi-space-size=128
lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# The types are checked while the tests run: that needs one core, and the tests leave a little of two.
test: env
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

# -n 3: three processes keep two cores busy while tests wait for processes and timers; a fourth gains nothing.
# --dist loadfile: tests of one file share costly fixtures, so they stay in one process; those that share a Spark
# session, too (tests/conftest.py).
# --no-loadscope-reorder: files with few tests would come last, and among them are the longest (the demo).
# Tests start hundreds of processes; each would compile the package where bytecode is not written.
PYTEST := $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 10

pytest thorough: export PYTHONDONTWRITEBYTECODE =
pytest: env
	$(PYTEST) -m 'not thorough' $(TESTS)

thorough: env
	$(PYTEST) -m thorough $(TESTS)

kafka-clients: export PYTHONDONTWRITEBYTECODE =
kafka-clients: env $(JARS)
	$(BIN)/pytest -n 2 --dist loadfile --durations 5 --java $(STORIES) $(MAVEN) $(ABSENT)

$(JARS): $(MAVEN)/pom.xml
	@{ command -v javac && command -v mvn; } >/dev/null || { echo 'Apache Kafka needs a JDK (17 or newer) and Maven.' >&2; exit 1; }
	rm -rf $(@D)
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies dependency:copy@older dependency:copy@spark
	@touch $@

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# FILES: recordings to replay instead of those in tests/oracle, in the same format.
# WIRE: kafka sends them to a broker process in Kafka's own bytes.
oracle: env
	$(BIN)/python -m tests.oracle --wire $(WIRE) $(FILES)

attack: env
	$(BIN)/python -m tests.attack --seed $(SEED)

# ONLY="--only power": one part, and further options of python -m tests.sweep.
sweep: env
	$(BIN)/python -m tests.sweep --seed $(SEED) $(ONLY)

# KAFKA_JARS: the directory with Apache Kafka's jars, to measure it too; `make kafka-jars` gets them.
bench: export KAFKA_JARS ?= $(wildcard $(MAVEN)/target/jars)
bench: env
	$(BIN)/python -m benchmarks

kafka-jars: $(JARS)

# Tests of a store are skipped where it could not be installed. Afterwards `make thorough` runs them, too.
stores: env
	tests/stores/install.sh
	$(BIN)/pytest --durations 5 -rs -m thorough tests/stores

# What changed shows `git diff --stat`, and in what the pictures themselves: look at each.
screenshots: env
	FENCEPOST_SCREENSHOTS=renew $(BIN)/pytest tests/lab/browser/test_screenshots.py

docs: env
	$(BIN)/python -m tools.docs

reference: env
	$(BIN)/python -m tools.docs.reference build/reference/pages
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) $(MAVEN)/target tests/stores/target build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

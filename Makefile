env:
	python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[spark,demo,dev]'
.PHONY: env

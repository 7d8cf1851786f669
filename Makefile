# Everything a newcomer needs: `make demo`, then `make down`. `make help` lists the rest.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
CONTROL := .envs/control/bin/python
cluster_site := $(CURDIR)/.pipeline/cluster-site
MODEL := .envs/model/bin/python

.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE # bytecode that is there saves each of a thousand processes some start-up
.PHONY: help environments docs-packages docs demo demo-tiny demo-rollback own-model down kubernetes chart axe vllm test test-thorough test-servers test-live test-airflow test-end-to-end test-calm test-model lint clean distclean bench-demo bench-house bench-transfer bench-accuracy bench-plan bench-load-gate bench-endpoint bench-cpu-engines bench-canary bench-canary-routing bench-canary-chaos bench-scale

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

environments = $(or $(PYTHON),$(error no python3: apt-get install -y python3.11 python3.11-venv libpython3.11)) docker/environments.py

environments: ## Make .envs/ from docker/constraints/, or find it up to date
	@$(environments)

docs-packages:
	@$(environments) --docs

docs: docs-packages ## The documentation's site, into .pipeline/site
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=.envs/docs $(CONTROL) -m mkdocs build --strict

demo: environments ## One release of a chat model (SmolLM2-135M), from its weights to live traffic and a chat; all stays up for a look
	@$(CONTROL) -m llm_pipeline.demo up

demo-tiny: environments ## The same with a tiny model that is trained first: no download, more requests, some minutes less
	@$(CONTROL) -m llm_pipeline.demo tiny

demo-rollback: environments ## A release that turns slow in production, and is rolled back without a lost request
	@$(CONTROL) -m llm_pipeline.demo rollback

own-model: environments ## A small Qwen3 from a directory to its first answer, by the commands of docs/own-model.md
	@$(MODEL) -W ignore tests/corpus/own_model.py .pipeline/own-model
	@MODEL="$(CURDIR)/.pipeline/own-model" $(CONTROL) tests/corpus/own_model_page.py

down: ## Stop every process of the demo
	@test ! -x $(CONTROL) || $(CONTROL) -m llm_pipeline.demo down

# What failed beside other tests on two cores is asked once more, by itself: what is broken fails again.
again := --last-failed --last-failed-no-failures=none
spread := --dist loadfile --no-loadscope-reorder
yielding := $(CONTROL) tests/yielding.py
pytest := -m pytest -q --durations=15
live_tests := $(CONTROL) $(pytest) --part live --ignore=tests/end_to_end
airflow_tests := $(CONTROL) $(pytest) --part airflow -o cache_dir=.pytest_cache/airflow tests/airflow
end_to_end_tests := $(CONTROL) $(pytest) -o cache_dir=.pytest_cache/end_to_end tests/end_to_end
calm_tests := $(yielding) $(CONTROL) $(pytest) --part calm -o cache_dir=.pytest_cache/calm
model_tests := $(yielding) $(MODEL) $(pytest) -o cache_dir=.pytest_cache/model
side_by_side := $(MAKE) --no-print-directory --jobs=4 --output-sync=target

test: docs-packages ## All tests, each under the interpreter that it needs
	@$(CONTROL) -m compileall -q -j 2 llm_pipeline plugins # once, not in each of ten processes that begin at once
	@$(side_by_side) test-end-to-end test-servers test-calm test-model

test-servers: # like the end-to-end tests they wait for times and for servers: what yields takes the cores meanwhile
	@$(MAKE) --no-print-directory test-live
	@$(MAKE) --no-print-directory test-airflow

kubernetes: environments ## Build a Kubernetes API server from Debian's source, once: test-thorough uses it
	@$(CONTROL) tests/kubernetes_programs.py

chart: environments ## Get Airflow's Helm chart and what renders it, once: test-thorough uses it
	@$(CONTROL) tests/chart_programs.py

vllm: ## Make .envs/vllm, vLLM's CPU build (2 GB): test-thorough scores and serves with it
	@$(environments) --vllm

axe := .pipeline/axe
axe_core := axe-core-4.14.1

axe: ## Get axe-core, which looks for what people with a screen reader or a keyboard cannot use, once
	@test -f $(axe)/package/axe.min.js || ! command -v npm > /dev/null || { mkdir -p $(axe) \
		&& npm pack --silent --pack-destination $(axe) $(subst core-,core@,$(axe_core)) > /dev/null \
		&& tar -xzf $(axe)/$(axe_core).tgz -C $(axe); }

matrix := tests/corpus/test_matrix.py

test-thorough: kubernetes chart axe vllm ## Minutes of live traffic and of hostile input: canaries that go wrong, real containers, fuzzed files
	$(CONTROL) -m pytest -q -m thorough -n 3 $(spread) --ignore=tests/end_to_end --ignore=$(matrix) tests
	$(CONTROL) -m pytest -q -m thorough -n 3 $(matrix) # one file, and three minutes a model
	$(MODEL) -m pytest -q -m thorough tests
	.envs/vllm/bin/python -m pytest -q -m thorough tests/vllm_cpu
	$(end_to_end_tests) -m thorough

test-live:
	$(live_tests) -n 5 $(spread) || $(live_tests) $(again)

test-airflow:
	$(airflow_tests) || $(airflow_tests) $(again)

test-end-to-end:
	$(end_to_end_tests) || $(end_to_end_tests) $(again)

test-calm:
	$(calm_tests) -n 2 $(spread) || $(calm_tests) $(again)

test-model:
	$(model_tests) || $(model_tests) $(again)

lint: environments ## ruff, mypy, the walls between rooms, and hadolint
	$(CONTROL) -m ruff check .
	$(CONTROL) -m ruff format --check .
	$(yielding) $(CONTROL) -m mypy
	.envs/control/bin/lint-imports --no-logo
	.envs/control/bin/hadolint docker/Dockerfile.*

bench-demo: environments ## Time the demo, cold and warm, and each stage's share
	@$(CONTROL) benchmarks/demo.py

bench-house: environments ## Circles of modules, and stops of the release config
	@$(CONTROL) benchmarks/house.py

bench-transfer: environments ## Time downloads, S3 and verification beside the usual tools
	@$(CONTROL) benchmarks/transfer.py

bench-accuracy: environments ## The accuracy gate's error rates beside other tools' rules, simulated
	@$(CONTROL) benchmarks/accuracy_gate.py

bench-plan: environments ## Time plans of all example releases, and the rendering of what their targets need
	@$(CONTROL) benchmarks/plan.py

bench-load-gate: environments ## The load gate's error rates on simulated servers, beside the naive rule
	@$(CONTROL) benchmarks/load_gate.py

bench-endpoint: environments ## What OpenAI's API costs beside Triton's own, at the same server
	@$(CONTROL) benchmarks/endpoint_cost.py

bench-cpu-engines: environments vllm ## Our CPU engine beside `vllm serve`, at the same model in the same run
	@$(CONTROL) benchmarks/cpu_engines.py

bench-canary: environments ## The canary's error rates and detection times beside other tools' rules, simulated
	@$(CONTROL) benchmarks/canary.py

bench-canary-routing: environments ## 200 weight changes under load, and the time from a failing candidate to stable
	@$(CONTROL) benchmarks/canary_routing.py

bench-canary-chaos: environments ## Half an hour of releases while everything breaks: lost requests, and what agrees at the end
	@$(CONTROL) benchmarks/canary_chaos.py

bench-scale: environments ## Twenty releases at once on Celery with killed workers; store calls and DAG parsing as both grow
	@test -d "$(cluster_site)/celery" || $(CONTROL) -m pip install --quiet --no-deps --target "$(cluster_site)" --requirement docker/constraints/cluster-py311.txt
	@PYTHONPATH="$(cluster_site)" $(CONTROL) benchmarks/scale.py
	@$(CONTROL) benchmarks/scale.py growth

clean: down ## Remove what runs and tools left; the environments stay
	rm -rf .pipeline .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.envs/*' -prune -exec rm -rf {} +

distclean: clean ## clean, and the environments too
	rm -rf .envs

"""Run a stage through Airflow's operator: `run_operator.py REQUEST DEPLOYMENT`; prints what crosses XCom."""

from __future__ import annotations

import json
import logging
import sys
from functools import cached_property
from pathlib import Path

from llm_pipeline_airflow.operators import StageOperator

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.runners.runner import Runners


class Operator(StageOperator):
    """Asks for the given stage, where the flow of a release would have made the request."""

    def request(self, _context):
        return StageRequest.model_validate_json(Path(sys.argv[1]).read_bytes())

    def _check_claim(self, _context, _request):
        """There is no release, so none waits for its turn."""

    @cached_property
    def _runner(self):
        return Runners(Deployment.model_validate_json(Path(sys.argv[2]).read_bytes()))


logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
operator = Operator(task_id="download", config_path="", stage="download")
operator.stays = True  # also where the stage takes long enough for the triggerer, which would read a release config
returned = operator.execute({})
sys.stdout.write(json.dumps(returned) + "\n")

"""What OpenAI's API costs beside Triton's own, at the same server in the same run.

    .envs/control/bin/python benchmarks/openai_api.py

One engine is served, and each seed asks it through both APIs in turn: at a low rate for the time to the first token,
and with users who never stop asking for the throughput. The goals are judged by the medians over the seeds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from goals import at_least, at_most
from plain_serving import (
    MODEL_PYTHON,
    REPOSITORY,
    TRITON_HOME,
    WORKLOAD,
    demo_model,
    engines_of,
    free_ports,
    target,
)

from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.loadtest.measure import LoadClient
from llm_pipeline.loadtest.token_counter import open_counter
from llm_pipeline.loadtest.workload import TrafficSource
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.triton_server import start_server, stop_server

USERS = 32


def main() -> int:
    """Start the server, ask it through both APIs, print the figures and the goals; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a Hugging Face checkpoint; by default the demo's model")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one window")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second for the time to the first token")
    options = parser.parse_args()
    checkpoint = options.checkpoint or demo_model()
    with tempfile.TemporaryDirectory(prefix="openai-api-") as scratch, ExitStack() as stack:
        repository, state = Path(scratch, "repository"), Path(scratch, "state")
        engine = engines_of(checkpoint) / "int8"
        write_repository(
            engine, (), {}, target("int8"), repository, engine_ref=ArtifactRef(kind="engine", digest="0" * 64)
        )
        ports = ServerPorts(**dict(zip(("http", "grpc", "metrics", "openai"), free_ports(4), strict=True)))
        stack.callback(stop_server, state)
        server = start_server(repository, ports, triton_home=TRITON_HOME, python=MODEL_PYTHON, state=state)
        by_openai = Endpoint(url=f"http://127.0.0.1:{ports.openai}", openai_model=MODEL_NAME)
        endpoints = {"Triton": Endpoint(url=server.http_url), "OpenAI": by_openai}
        clients = {api: stack.enter_context(LoadClient(one, processes=1)) for api, one in endpoints.items()}
        source = TrafficSource(WORKLOAD, REPOSITORY / "configs", count_tokens=open_counter(checkpoint))
        first, throughput = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for seed in range(-1, options.seeds):  # the first one warms up
            for api, client in list(clients.items())[:: 1 if seed % 2 else -1]:
                calm = client.send(source.open_loop(options.rate, options.seconds, seed + 1))
                full = client.send(source.closed_loop(USERS, options.seconds, seed + 1, maximum_requests=100_000))
                if seed < 0:
                    continue
                answered = full.records.where(full.records.answered)
                first[api].append(float(np.median(calm.records.where(calm.records.answered)["first_token_seconds"])))
                throughput[api].append(float(answered["output_tokens"].sum()) / full.window_seconds)
                print(f"seed {seed}  {api:<7} first token {1000 * first[api][-1]:6.1f} ms, p50 at {options.rate:g}/s;"
                      f" {throughput[api][-1]:8.0f} tokens/s of {USERS} users", flush=True)  # fmt: skip
    later = 1000 * (np.median(first["OpenAI"]) - np.median(first["Triton"]))
    share = np.median(throughput["OpenAI"]) / np.median(throughput["Triton"])
    met = [
        at_most("first token later than Triton's, p50", float(later), 3, "ms"),
        at_least("throughput beside Triton's", float(share), 0.97),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())

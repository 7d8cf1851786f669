"""Routes of the web pages and the webhook: what nobody expected is answered shortly, and logged where it happened."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from llm_pipeline.base.errors import PipelineError
from llm_pipeline_airflow.faults import known_fault


def guarded_route(answer: Callable[[PipelineError], Response]) -> type[APIRoute]:
    """A class of routes that answer an exception by `answer`: Starlette would raise it again in Airflow's server."""

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                try:
                    return await handle(request)
                except (HTTPException, RequestValidationError):
                    raise
                except Exception as error:  # noqa: BLE001 - the edge of the request
                    return answer(known_fault(error, f"{request.method} {self.path}"))

            return guarded

    return GuardedRoute

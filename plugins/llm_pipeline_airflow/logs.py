"""Logs of our code inside Airflow's processes, whose handlers and levels are Airflow's business.

Importing this module makes HTTP and cloud libraries log warnings and errors only, as Airflow itself does with httpx,
and cleans the text of their records and of ours: no credentials, one line a record.
"""

from __future__ import annotations

import logging

from llm_pipeline.base.logging import OURS, THIRD_PARTIES, clean_records, quiet_third_parties

quiet_third_parties()
clean_records((*(name for name in OURS if name != "__main__"), *THIRD_PARTIES), with_traceback=True)


def get_logger(name: str) -> logging.Logger:
    """A standard logger by the name of its module."""
    return logging.getLogger(name)

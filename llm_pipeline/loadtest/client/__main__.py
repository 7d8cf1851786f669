"""One client process: `python -m llm_pipeline.loadtest.client`, started by `measure.py`, spoken to through a socket.

It ends with its parent, also when that is killed: its socket is then closed.
"""

from __future__ import annotations

from llm_pipeline.base.entry import entry_point


@entry_point
def main() -> None:
    """Serve the parent on stdin."""
    from llm_pipeline.loadtest.client.serving import serve_parent

    serve_parent()


if __name__ == "__main__":
    raise SystemExit(main())

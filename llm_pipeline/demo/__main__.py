"""The demo: `python -m llm_pipeline.demo up | tiny | rollback | down` (the Makefile calls it).

`up` releases a pretrained chat model through the Airflow DAG into live traffic, and talks to it; `tiny` does so with a
tiny model that is trained here; `rollback` releases a candidate of the tiny model that turns slow in production and
shows that it is rolled back without a lost request; `down` stops every process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from llm_pipeline.base.entry import ArgumentParser, entry_point, interruptible
from llm_pipeline.base.logging import write_readable_lines


@entry_point
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `up`, `tiny`, `rollback` or `down`; an interruption stops all that was started."""
    parser = ArgumentParser(prog="python -m llm_pipeline.demo")
    parser.add_argument("command", choices=["up", "tiny", "rollback", "down"])
    command: str = parser.parse_args(arguments).command
    from llm_pipeline.demo.releases import Console, Demo
    from llm_pipeline.demo.services import CHAT, TINY, DemoLayout

    console = Console()
    write_readable_lines(console)
    logging.getLogger("llm_pipeline.stage").setLevel(logging.WARNING)
    demo = Demo(DemoLayout(model=CHAT if command == "up" else TINY), console)
    commands: dict[str, Callable[[], int]] = {
        "up": demo.up, "tiny": demo.up, "rollback": demo.rollback, "down": demo.down
    }  # fmt: skip
    try:
        with interruptible():
            return commands[command]()
    except KeyboardInterrupt:
        console.line("\ninterrupted: stopping everything that was started")
        demo.down()
        raise


if __name__ == "__main__":
    raise SystemExit(main())

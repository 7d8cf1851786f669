"""A canary controller as a process of its own, to be killed: drive.py SETTINGS.json PERCENT [PAUSE_AT]."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from http_slots import HttpSlots

from llm_pipeline.adapters.envoy.process import find_router
from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.logging import write_json_lines
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.access_log import AccessLog
from llm_pipeline.canary.controller import CanaryController
from llm_pipeline.canary.record import CanaryJournal, CanaryPlan, CanaryRecord, lease_name
from llm_pipeline.canary.router import Patience
from llm_pipeline.canary.traffic import LoggedTraffic
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import Pointer


class DyingJournal(CanaryJournal):
    """Ends this process with SIGKILL right after it has saved a phase, as a lost machine would."""

    die_after: str = ""

    def save(self, record: CanaryRecord) -> CanaryRecord:
        saved = super().save(record)
        intent = record.intended is not None and record.intended != record.applied
        state = f"{record.phase.value}{' intent' if intent and record.phase.value == 'shifting' else ''}"
        if state == self.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return saved


def main() -> int:
    write_json_lines()
    settings = json.loads(Path(sys.argv[1]).read_text())
    root = Path(settings["root"])
    router = find_router(root / "router")
    assert router is not None
    store = LocalStore(settings["store"])
    slots = HttpSlots(root, router.slots, settings.get("drill"))
    stable = settings.get("stable", "blue")
    production = None
    if stable:
        production = Pointer(
            release_id="before",
            repository=ArtifactRef(kind="model_repository", digest="a" * 64),
            slot=stable,
            recipe="none",
            promoted_at=datetime.fromisoformat(settings["promoted_at"]),
        )
    plan = CanaryPlan(
        release_id=settings["release_id"],
        run=settings["run"],
        target="cpu",
        candidate=ArtifactRef(kind="model_repository", digest="b" * 64),
        production=production,
        policy=CanaryPolicy.model_validate(settings["policy"]),
        patience=Patience(write=5, confirm=3, drain=3, blind_drain=0.5),
    )
    journal = DyingJournal(store, plan.release_id, "cpu")
    journal.die_after = settings.get("die_after", "")
    log = AccessLog(router.files.access_log, router.slot_of_address)
    try:
        with Lease(store, lease_name("cpu"), seconds=2.0) as lease:
            controller = CanaryController(
                plan,
                journal=journal,
                lease=lease,
                router=router,
                traffic=LoggedTraffic(log),
                slots=slots,
            )
            judgement = controller.run_step(float(sys.argv[2]))
    except PipelineError as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        return 9
    sys.stdout.write(judgement.model_dump_json() + "\n")
    return int(judgement.verdict.exit_code)


if __name__ == "__main__":
    raise SystemExit(main())

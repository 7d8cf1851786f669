"""What serves, verified on real servers: Triton in a slot, Envoy before it, and a store that somebody tampers with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from place_here import serve
from production_site import MODEL, Production

from llm_pipeline.adapters.envoy.router import router_of
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.router import all_to
from llm_pipeline.cli import main
from llm_pipeline.operations.switching import start_production
from llm_pipeline.operations.verification import Check, summary, verify_place
from llm_pipeline.serving.triton_server import stop_server
from llm_pipeline.store.place_state import Pointer

pytestmark = pytest.mark.slow


class Site(Production):
    """A place that serves r1, with r2 as the version before it."""

    def serve(self, release: str = "r1", *, slot: str = "blue", previous: str | None = "r2") -> None:
        self.point(release, slot=slot, previous=previous)
        start_production(self.store, self.deployment, "cpu")

    def point(self, release: str, *, slot: str = "blue", previous: str | None = "r2") -> None:
        def pointer(name: str | None, where: str) -> Pointer | None:
            if name is None:
                return None
            return Pointer.model_validate(
                {"release_id": name, "repository": self.repositories[name], "slot": where, "recipe": "none",
                 "promoted_at": datetime.now(UTC)}
            )  # fmt: skip

        other = "green" if slot == "blue" else "blue"
        serve(self.store, MODEL, "cpu", pointer(release, slot), previous=pointer(previous, other))

    def checks(self) -> list[Check]:
        return list(verify_place(self.store, self.deployment, "cpu"))

    def wrong(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for check in self.checks():
            if check.problem:
                found[check.what] = "; ".join(filter(None, (found.get(check.what), check.problem)))
        return found

    def file_of(self, ref: ArtifactRef, name: str) -> Path:
        path = self.store.fetch(ref) / name
        path.parent.chmod(0o755)
        path.chmod(0o644)
        return path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    place = Site(tmp_path)
    try:
        yield place
    finally:
        place.down()


def test_what_serves_as_it_was_released_is_well_and_each_kind_of_damage_is_found(site: Site) -> None:
    site.serve()
    checks = site.checks()
    assert [check for check in checks if check.problem] == []
    assert {check.what for check in checks} == {
        f"production:{MODEL}/cpu", f"production:{MODEL}/cpu, llm/1/linked", f"previous:{MODEL}/cpu",
        f"previous:{MODEL}/cpu, llm/1/linked", "status, healthy", "digest of blue", "golden answers of blue",
    }  # fmt: skip
    assert summary("cpu", checks) == "cpu: nothing wrong (7 checked)"

    golden = site.file_of(site.repositories["r2"], "golden.jsonl")  # of the version before: a rollback would need it
    whole = golden.read_bytes()
    golden.write_bytes(whole + b"\n")
    assert "golden.jsonl: changed" in site.wrong()[f"previous:{MODEL}/cpu"]
    assert golden.read_bytes() == whole + b"\n"  # it changes nothing
    golden.write_bytes(whole)
    assert site.wrong() == {}

    router = router_of(site.state("router"))
    assert router is not None
    state, revision = router.read()
    router.write(all_to("green", owner="somebody", epoch=state.epoch + 1), revision)
    assert "router sends it 0 % of the traffic" in site.wrong()["status"]

    stop_server(site.state("blue"))
    assert "blue" in site.wrong()["status"]


def test_a_server_that_gives_other_answers_or_serves_another_release_is_found(site: Site) -> None:
    line = json.dumps({"prompt": "a r1", "completion": " b r1", "max_tokens": 2}) + "\n"
    directory = site.root / "repositories" / "r1"
    (directory / "golden.jsonl").write_text(line * 5)
    site.repositories["r3"] = site.store.publish("model_repository", directory)
    site.serve("r3")
    assert site.wrong() == {"golden answers of blue": "it gives 0 of 5 golden answers, and 80% are needed"}
    site.point("r1")
    assert site.wrong() == {
        "status": f"production is r1 in blue, but that slot serves {site.repositories['r3'].digest[:12]}"
    }


def test_the_command_fails_with_one_line(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(site.deployment_file()))
    assert main(["verify", "--place", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "cpu: nothing wrong (1 checked)"  # nothing is in production
    site.point("r1", previous=None)
    weights = site.file_of(site.repositories["r1"], "llm/config.pbtxt")
    weights.write_bytes(weights.read_bytes() + b"#")
    for _ in range(2):
        assert main(["verify"]) == 1
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith(f"cpu: 2 of 2 checks found something wrong: production:{MODEL}/cpu: llm/config.pbtxt")
        assert "not on this host" in last
    assert main(["verify", "--json"]) == 1
    assert {check["place"] for check in json.loads(capsys.readouterr().out)} == {"cpu"}
    assert main(["verify", "--place", "gpu"]) == 4
    assert main(["verify", "r1", "--place", "cpu"]) == 4

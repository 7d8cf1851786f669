"""Where the demo keeps things, and which loopback ports it uses beyond those of its deployment file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL_ID = "demo/tiny-llama"
TARGET = "cpu"
AIRFLOW_PORT = 18080


@dataclass(frozen=True)
class DemoLayout:
    """Paths of one checkout's demo."""

    repository: Path = REPOSITORY

    @property
    def root(self) -> Path:
        """Everything the demo writes is below this directory."""
        return self.repository / ".pipeline"

    @property
    def configs(self) -> Path:
        """The configuration tree."""
        return self.repository / "configs"

    @property
    def deployment(self) -> Path:
        """The demo's deployment file."""
        return self.configs / "deployments" / "local.yaml"

    @property
    def model(self) -> Path:
        """The trained model, as its author would push it."""
        return self.root / "demo" / "model"

    @property
    def hub(self) -> Path:
        """The local hub's repositories."""
        return self.root / "demo" / "hub"

    @property
    def services(self) -> Path:
        """Records and logs of the demo's own processes."""
        return self.root / "demo" / "services"

    @property
    def traffic_record(self) -> Path:
        """What became of the background traffic's requests."""
        return self.services / "traffic.json"

    @property
    def airflow(self) -> Path:
        """Airflow's home."""
        return self.root / "airflow"

    def release(self, name: str) -> Path:
        """A release config."""
        return self.configs / "releases" / f"{name}.yaml"

"""Paths of the demo, and loopback ports beyond those of its deployment file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODEL_ID = "demo/tiny-llama"
TARGET = "cpu"
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class DemoLayout:
    """Paths and ports of one demo.

    Attributes:
        root: Everything the demo writes is below this directory; the deployment file names the same one.
        configs: The configuration tree.
        airflow_port: Loopback port of Airflow's UI and API.
        requests_per_second: Background traffic to production.
    """

    root: Path = _REPOSITORY / ".pipeline"
    configs: Path = _REPOSITORY / "configs"
    airflow_port: int = 18080
    requests_per_second: float = 25.0

    @property
    def deployment(self) -> Path:
        """Path of the demo's deployment file."""
        return self.configs / "deployments" / "local.yaml"

    @property
    def model(self) -> Path:
        """The trained model, as its author would push it."""
        return self.root / "demo" / "model"

    @property
    def hub(self) -> Path:
        """Directory of the local hub's repositories."""
        return self.root / "demo" / "hub"

    @property
    def services(self) -> Path:
        """Records and logs of the demo's own processes."""
        return self.root / "demo" / "services"

    @property
    def traffic_record(self) -> Path:
        """File that counts the background traffic's requests by outcome."""
        return self.services / "traffic.json"

    @property
    def airflow(self) -> Path:
        """Airflow's home: database, logs and process records."""
        return self.root / "airflow"

    def release(self, name: str) -> Path:
        """Path of a release config by its name."""
        return self.configs / "releases" / f"{name}.yaml"

"""Airflow's Helm chart with our values, rendered by Helm, and its containers as processes of this machine."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import chart_programs
import pytest
import yaml

Document = dict[str, Any]

ROOT = Path(__file__).parents[1]
VALUES = ROOT / "docker" / "airflow-values.yaml"
NAMESPACE = "ml-releases"


@dataclass(frozen=True)
class Render:
    """What Helm makes of the chart.

    Attributes:
        documents: The manifests.
    """

    documents: list[Document]

    def one(self, kind: str, name: str) -> Document:
        """The manifest of a kind and a name."""
        (found,) = [one for one in self.documents if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        return found

    def of_airflow(self) -> dict[str, Document]:
        """The pods of Airflow itself by the name of their workload: those with its configuration."""
        pods = {one["metadata"]["name"]: one["spec"]["template"] for one in self.documents if "template" in spec(one)}
        return {name: pod for name, pod in pods.items() if "AIRFLOW_HOME" in yaml.safe_dump(pod)}

    def pod_template(self, name: str = "") -> Document:
        """The pod of a queue, or the one of all others."""
        config, key = ("airflow-llm-pipeline", f"{name}.yaml") if name else ("airflow-config", "pod_template_file.yaml")
        pod: Document = yaml.safe_load(self.one("ConfigMap", config)["data"][key])
        return pod

    @cached_property
    def secrets(self) -> dict[str, dict[str, str]]:
        """The values of the chart's secrets."""
        return {
            one["metadata"]["name"]: {key: base64.b64decode(text).decode() for key, text in one["data"].items()}
            for one in self.documents
            if one["kind"] == "Secret"
        }


def spec(document: Document) -> Document:
    """Its spec, if it has one."""
    return document.get("spec") or {}


def rendered(*arguments: str) -> Render:
    """The chart with our values, and more arguments for Helm; skips the test where Helm or the chart is missing."""
    if not chart_programs.are_here():
        pytest.skip(f"no Helm or chart in {chart_programs.directory()}: run `make chart`")
    command = [str(chart_programs.helm()), "template", "airflow", str(chart_programs.chart())]
    command += ["--namespace", NAMESPACE, "--values", str(VALUES), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Render([one for one in yaml.safe_load_all(done.stdout) if one])


@dataclass(frozen=True)
class Machine:
    """This machine in place of the nodes: files of the image and of volumes are below one directory.

    Attributes:
        render: Whose config maps and secrets are there.
        directory: What `/` is to a container.
        secrets: Secrets that the chart does not make, by their names.
        instead: Variables of all containers that differ here: addresses of services, the database.
        texts: Texts of configuration that differ here.
    """

    render: Render
    directory: Path
    secrets: Mapping[str, Mapping[str, str]]
    instead: Mapping[str, str]
    texts: Mapping[str, str]

    def start(self, pod: Document, container: Document, **options: Any) -> subprocess.Popen[bytes]:
        """Start a container; its image's entry point, which is Airflow's, hands its arguments on as they are."""
        environment = self.environment(pod, container)
        arguments = [self.here(text) for text in container["args"]]
        return subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, **options)

    def environment(self, pod: Document, container: Document) -> dict[str, str]:
        """A container's variables, after its files are laid out."""
        for mount in container["volumeMounts"]:
            (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == mount["name"]]
            if "configMap" in volume:
                self._lay_out(mount, self.render.one("ConfigMap", volume["configMap"]["name"])["data"])
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "LLM_PIPELINE"))}
        of_image = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}:{chart_programs.packages()}",
        }
        return clean | of_image | dict(self._variables(container)) | dict(self.instead)

    def here(self, text: str) -> str:
        """A text with the paths and addresses that hold on this machine."""
        for of_cluster, of_machine in {"/opt/airflow": f"{self.directory}/opt/airflow", **self.texts}.items():
            text = text.replace(of_cluster, of_machine)
        return text

    def _variables(self, container: Document) -> Iterator[tuple[str, str]]:
        for variable in container["env"]:
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                secrets = {**self.render.secrets, **self.secrets}
                yield variable["name"], secrets[reference["name"]][reference["key"]]
            else:
                yield variable["name"], self.here(variable["value"])

    def _lay_out(self, mount: Document, data: Mapping[str, str]) -> None:
        path = Path(self.here(mount["mountPath"]))
        files = {path: data[mount["subPath"]]} if "subPath" in mount else {path / key: data[key] for key in data}
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.here(text) if file.suffix == ".cfg" else text)

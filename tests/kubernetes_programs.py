"""Gets and builds a Kubernetes API server, its controllers and etcd from Debian's packages, once: `make kubernetes`.

Debian has etcd, a Go compiler, and the source of Kubernetes 1.20 with everything that it needs. They are unpacked in a
directory of the user's cache and installed nowhere, so no privilege is needed; packages come from the mirrors that this
machine's apt has, and apt checks their signatures. The build takes about ten minutes of two cores and 3 GB of disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

KUBERNETES = "1.20.2"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")

_REFLECTION = "github.com/modern-go/reflect2"
"""Its vendored version ends a server that Go 1.18 or later compiled at the first custom object; Debian's does not."""

_ZERO_TEST = " || reflect.DeepEqual(reflect.Zero(reflect.TypeOf(data)), reflect.ValueOf(data))"
"""Since Go 1.17 true of an empty text, which the server then takes for null; later releases are without it."""

_PACKAGES = (
    "golang-1.19-go", "golang-1.19-src", "etcd-server", "rsync", "libpopt0", "golang-github-modern-go-reflect2-dev",
)  # fmt: skip
_BUILT = ("kube-apiserver", "kube-controller-manager")
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")


class NotHere(Exception):
    """Something is not to be had on this machine; the message says why."""


def programs_directory() -> Path:
    """Where the programs are, or will be: named by a variable, or in the user's cache."""
    named = os.environ.get("LLM_PIPELINE_TEST_KUBERNETES")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else cache / "llm-pipeline" / f"kubernetes-{KUBERNETES}"


def are_built() -> bool:
    """Whether all programs are there."""
    return all((programs_directory() / name).is_file() for name in PROGRAMS)


def build() -> None:
    """Build what is not there yet; of several processes that begin at once, one builds.

    Raises:
        NotHere: The packages, or what is needed to unpack and build them, are not to be had.
    """
    directory = programs_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not are_built():
            work = directory / "build"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            source, tools = _unpacked_source(work), _tools(work)
            _mend_for_this_compiler(source, tools)
            _compile(source, tools, work)
            for name in _BUILT:
                shutil.move(work / f"source/_output/local/bin/linux/amd64/{name}", directory / name)
            shutil.copy(work / "tools/usr/bin/etcd", directory / "etcd")
            shutil.rmtree(work)


def _apt(work: Path) -> dict[str, str]:
    """An environment in which apt keeps its lists here, and knows source packages, too."""
    missing = [name for name in ("apt-get", "dpkg-deb", "make", "gcc") if shutil.which(name) is None]
    if missing or not _SOURCES.exists():
        raise NotHere(f"this machine has no {', '.join(missing) or _SOURCES}")
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (work / "apt" / name).mkdir(parents=True)
    with_sources = _SOURCES.read_text().replace("Types: deb\n", "Types: deb deb-src\n")
    (work / "apt/sources/debian.sources").write_text(with_sources)
    (work / "apt/apt.conf").write_text(
        f'Dir::State::Lists "{work}/apt/lists";\nDir::Cache "{work}/apt/cache";\nDir::Etc::SourceList "/dev/null";\n'
        f'Dir::Etc::SourceParts "{work}/apt/sources";\nAPT::Sandbox::User "";\n'
    )
    environment = os.environ | {"APT_CONFIG": f"{work}/apt/apt.conf"}
    run(["apt-get", "--quiet", "--quiet", "update"], work, environment)
    return environment


def _unpacked_source(work: Path) -> Path:
    run(["apt-get", "--quiet", "--quiet", "source", "--download-only", "kubernetes"], work, _apt(work))
    archives = list(work.glob(f"kubernetes_*{KUBERNETES}.orig.tar.*"))
    if not archives:
        raise NotHere(f"Debian's source package here is not Kubernetes {KUBERNETES}")
    (work / "source").mkdir()
    run(["tar", "--extract", "--file", str(archives[0]), "--strip-components=1", "--directory=source"], work)
    return work / "source"


def _tools(work: Path) -> Path:
    environment = os.environ | {"APT_CONFIG": f"{work}/apt/apt.conf"}
    run(["apt-get", "--quiet", "--quiet", "download", *_PACKAGES], work, environment)
    for package in work.glob("*.deb"):
        run(["dpkg-deb", "--extract", str(package), "tools"], work)
    return work / "tools"


def _mend_for_this_compiler(source: Path, tools: Path) -> None:
    """Kubernetes 1.20 was written for Go 1.15: two of its vendored packages are wrong with Debian's Go."""
    validation = source / "vendor/k8s.io/kube-openapi/pkg/validation/validate/type.go"
    text = validation.read_text()
    if text.count(_ZERO_TEST) != 1:
        raise NotHere("the source has another validation than the one that is known")
    validation.write_text(text.replace(_ZERO_TEST, ""))
    vendored = source / "vendor" / _REFLECTION
    shutil.rmtree(vendored)
    shutil.copytree(tools / "usr/share/gocode/src" / _REFLECTION, vendored, ignore=shutil.ignore_patterns("go.mod"))


def _compile(source: Path, tools: Path, work: Path) -> None:
    """Kubernetes' own make, which also generates code; `go build` alone refuses its list of vendored modules."""
    go = tools / "usr/lib/go-1.19"
    libraries = [str(path.parent) for path in tools.glob("**/libpopt.so.0")]
    environment = os.environ | {
        "GOROOT": str(go), "GOCACHE": f"{work}/go-cache", "GOPATH": f"{work}/go", "GOPROXY": "off", "GOFLAGS": "-p=2",
        "PATH": f"{go}/bin:{tools}/usr/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": ":".join(libraries),
        "KUBE_GIT_VERSION": f"v{KUBERNETES}", "KUBE_GIT_MAJOR": "1", "KUBE_GIT_MINOR": "20", "KUBE_GIT_COMMIT": "none",
        "KUBE_GIT_TREE_STATE": "archive", "FORCE_HOST_GO": "y",
    }  # fmt: skip
    what = " ".join(f"cmd/{name}" for name in _BUILT)
    run(["nice", "-n", "19", "make", f"WHAT={what}", "GOFLAGS=-p=2"], source, environment)


def run(command: list[str], directory: Path | None = None, environment: dict[str, str] | None = None) -> None:
    """Run a command to its end.

    Raises:
        NotHere: It failed.
    """
    done = subprocess.run(
        command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-20:])
        raise NotHere(f"{' '.join(command[:3])} ended with {done.returncode}:\n{last}")


if __name__ == "__main__":
    try:
        build()
    except NotHere as problem:
        sys.stderr.write(f"No Kubernetes API server, its tests will be skipped: {problem}\n")
    else:
        sys.stdout.write(f"{programs_directory()}\n")

"""Where the files of a configuration are: in the folder of its owner, else in this package.

Recipes, targets, policies and calibration texts come with the package. A file of the same name in one's own folder
takes the place of the package's.
"""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.base.errors import ConfigError

SUFFIXES = (".yaml", ".yml")
SHIPPED_FOLDERS = ("calibration", "policies", "quantization", "targets")
"""What a release config may name without having it. Releases, deployments, tasks and workloads are always one's own."""

_INSTALLED = Path(__file__).parent / "shipped"
_INSTALLED_CONSTRAINTS = Path(__file__).parents[1] / "constraints"
_CHECKOUT = Path(__file__).parents[2]


def shipped_configs() -> Path:
    """The package's own `configs/`: data of the wheel, or the repository's in a clone."""
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT / "configs"


def constraints() -> Path:
    """The folder of pinned versions that were tested together: data of the wheel, or the repository's in a clone."""
    return _INSTALLED_CONSTRAINTS if _INSTALLED_CONSTRAINTS.is_dir() else _CHECKOUT / "docker" / "constraints"


def how_to_make_an_interpreter() -> str:
    """What to do where an interpreter is missing, or lacks this package."""
    pins = constraints() / "model-py311.txt"
    how = "run `make environments`"
    if pins.is_relative_to(_INSTALLED_CONSTRAINTS):
        how = (
            f"make it: `python3.11 -m venv`, then with its pip `install torch --constraint {pins}`, and "
            f"`install --no-deps --requirement {pins}` with this package's wheel"
        )
    return f"{how}; or name another one under environments: in the deployment file"


def yaml_files(folder: Path) -> list[Path]:
    """The YAML files of a folder, by name."""
    return sorted(path for suffix in SUFFIXES for path in folder.glob(f"*{suffix}"))


def names_in(root: Path, folder: str) -> list[str]:
    """The names that a release config of `root` may give for a folder."""
    return sorted({path.stem for home in _homes(root, folder) for path in yaml_files(home / folder)})


def named_file(root: Path, folder: str, name: str) -> Path | None:
    """The file of a name: one's own, else the package's, else None.

    Raises:
        ConfigError: There are two of it, `.yaml` and `.yml`.
    """
    for home in _homes(root, folder):
        found = [path for suffix in SUFFIXES if (path := home / folder / f"{name}{suffix}").is_file()]
        if len(found) > 1:
            raise ConfigError(f"there is {found[1].name} as well", where=str(found[0]), hint="remove one of them")
        if found:
            return found[0]
    return None


def data_root(root: Path, name: str) -> Path:
    """The configs directory that has a data file: the package's if only it has the file, else `root`."""
    if (root / name).exists():
        return root
    return next((home for home in _homes(root, Path(name).parts[0]) if (home / name).exists()), root)


def _homes(root: Path, folder: str) -> tuple[Path, ...]:
    return (root, shipped_configs()) if folder in SHIPPED_FOLDERS else (root,)

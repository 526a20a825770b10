"""What is installed: the kernels inside the package, and pinned versions for everything we ask for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
REQUIREMENTS = [
    Requirement(line) for line in sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"])
]


def copy_sources(folder: Path) -> None:
    """What an installation is made of."""
    for name in ("minipaged", "kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree, built from a copy, because setuptools leaves things behind."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_sources(folder)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", "out", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((folder / "out").glob("*.whl"))


def test_every_module_is_in_the_wheel_and_the_kernels_are_inside_the_package(wheel: Path) -> None:
    expected = {f"minipaged/{p.relative_to(ROOT / 'minipaged')}" for p in (ROOT / "minipaged").rglob("*.py")}
    expected |= {
        f"minipaged/kernels/{p.relative_to(ROOT / 'kernels')}" for p in (ROOT / "kernels").rglob("*.py")
    }
    assert {name for name in ZipFile(wheel).namelist() if name.endswith(".py")} == expected


def test_the_wheel_imports_away_from_the_project(wheel: Path, tmp_path: Path) -> None:
    ZipFile(wheel).extractall(tmp_path / "site")
    code = "import minipaged.kernels.paged.torch_twins as twins; print(twins.__file__)"
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {code}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "site/minipaged/kernels/paged/torch_twins.py"), done.stderr


def test_a_clone_called_minipaged_imports_from_the_folder_above_it(tmp_path: Path) -> None:
    """There the clone itself looks like a package without code, and Python finds it first."""
    clone, env = tmp_path / "minipaged", tmp_path / "env"
    copy_sources(clone)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (site,) = env.glob("lib/python3*/site-packages")
    (site / "shared.pth").write_text(sysconfig.get_paths()["purelib"])  # our dependencies, but not this clone
    python = str(env / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-build-isolation"]
    command += ["--no-deps", "-e", str(clone)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    code = """
import minipaged.kernels.paged.torch_twins as twins
from minipaged import LLM, SamplingParams, load_parts
print(twins.__file__)
print(LLM.__module__, load_parts.__module__)
"""
    (tmp_path / "script.py").write_text(code)
    for arguments in (["-c", code], ["script.py"]):
        done = subprocess.run([python, *arguments], cwd=tmp_path, capture_output=True, text=True)
        expected = f"{clone}/kernels/paged/torch_twins.py\nminipaged.llm minipaged.parts\n"
        assert done.stdout == expected, done.stderr


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.14"])
@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_every_dependency_that_applies_is_pinned_once_within_its_range(python: str, platform: str) -> None:
    where = {"python_version": python, "sys_platform": platform}

    def applies(requirement: Requirement) -> bool:
        return requirement.marker is None or requirement.marker.evaluate(where)

    for wanted in filter(applies, REQUIREMENTS):
        same_name = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(wanted.name)]
        pins = [pin for pin in same_name if applies(pin)]
        assert len(pins) == 1, f"{wanted} is pinned {len(pins)} times"
        version = str(pins[0].specifier).removeprefix("==")
        assert wanted.specifier.contains(version), f"{pins[0]} is outside {wanted}"


def test_nothing_is_pinned_that_is_not_asked_for() -> None:
    asked_for = {canonicalize_name(requirement.name) for requirement in REQUIREMENTS}
    assert {canonicalize_name(pin.name) for pin in PINS} <= asked_for

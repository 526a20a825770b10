"""`minipaged doctor`: each problem is found, and comes with something to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from minipaged.cli import main
from minipaged.cli.doctor import CHECKS, Finding

GIB = 2**30


def doctor(monkeypatch: pytest.MonkeyPatch, only: str) -> Result:
    """The command with one of its checks."""
    for name in set(CHECKS) - {only}:
        monkeypatch.delitem(CHECKS, name)
    return CliRunner().invoke(main, ["doctor"])


def doctor_beside(folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process that finds the modules in `folder` before the installed ones."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "minipaged", "doctor"]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_this_environment_has_no_problem_and_every_check_has_its_line() -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.stdout
    lines = result.stdout.splitlines()
    assert all(any(line[9:].startswith(name) for line in lines) for name in CHECKS)
    assert lines[-1].startswith("problems: 0")


def test_a_torch_that_cannot_be_imported_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch is broken')")
    result = doctor_beside(tmp_path)
    assert result.returncode == 1 and result.stderr == ""
    assert "problem  torch    cannot be imported: libtorch is broken" in result.stdout
    assert "pip install -c constraints.txt torch" in result.stdout


def test_a_triton_whose_kernels_fail_is_a_warning_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "triton.py").write_text("raise ImportError('libtriton is broken')")
    result = doctor_beside(tmp_path)
    assert result.returncode == 0
    assert "warning  triton" in result.stdout and "libtriton is broken" in result.stdout
    assert "chapters 11 and 12" in result.stdout


def test_a_kernel_that_kills_its_process_does_not_kill_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("minipaged.cli.doctor.KERNEL_TEST", "import os; os.abort()")
    result = doctor(monkeypatch, "triton")
    assert result.exit_code == 0 and "exit code -6" in result.stdout


def test_loops_that_cannot_be_used_are_a_warning_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    # Importing it is an ImportError now.
    monkeypatch.setitem(sys.modules, "minipaged.backends.numba_loops", None)
    result = doctor(monkeypatch, "numba")
    assert result.exit_code == 0
    assert result.stdout.startswith("warning  numba") and "its loops can't be used: import of" in " ".join(
        result.stdout.split()
    )


def test_a_missing_model_is_a_warning_that_says_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path))
    result = doctor(monkeypatch, "model")
    assert result.exit_code == 0
    assert result.stdout.startswith("warning  model") and "Run `minipaged fetch`" in result.stdout


def test_an_incomplete_model_is_a_warning_that_says_what_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path))
    (tmp_path / "smollm2-135m").mkdir()
    result = doctor(monkeypatch, "model")
    words = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert "config.json" in words and "Delete" in words and "run `minipaged fetch`" in words


@pytest.mark.parametrize(("available", "status"), [(GIB, "warning"), (8 * GIB, "ok")])
def test_memory_is_held_against_what_model_and_pool_need(
    available: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SimpleNamespace(available=available)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    result = doctor(monkeypatch, "memory")
    assert result.stdout.startswith(f"{status:9}memory   {available / GIB:.1f} GiB available")
    assert ("--num-blocks" in result.stdout) == (status == "warning")


def test_only_a_problem_makes_the_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    for status, exit_code in (("ok", 0), ("warning", 0), ("problem", 1)):
        finding = Finding(status, "found", "a remedy")
        monkeypatch.setattr("minipaged.cli.doctor.CHECKS", {"thing": lambda finding=finding: finding})
        result = CliRunner().invoke(main, ["doctor"])
        assert result.exit_code == exit_code and "a remedy" in result.stdout

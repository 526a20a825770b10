"""Every solution gets all points in isolation: whatever a sandbox leaves out, the tests do without."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from minipaged.course.grading.grade import grade_submission
from minipaged.course.grading.package_view import copy_package
from minipaged.course.grading.sandbox import find_isolation
from minipaged.course.outline import Chapter
from minipaged.course.tasks import find_chapter, graded_chapters

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="grading needs Linux or macOS")


def test_what_is_in_a_sandbox_needs_nothing_that_is_not(tmp_path: Path) -> None:
    """All imports of the package's own modules, those in functions too, but for the commands' and the ones
    that are left out because they are answers."""
    copy_package(tmp_path, find_chapter(ROOT, "ch12"), {})
    files = {file.relative_to(tmp_path).as_posix(): file for file in tmp_path.rglob("*.py")}
    missing = set()
    for name, file in files.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minipaged."):
                path = str(node.module).replace(".", "/")
                if f"{path}.py" not in files and f"{path}/__init__.py" not in files:
                    missing.add((name.removeprefix("minipaged/"), str(node.module)))
    assert {module for _, module in missing} <= {
        "minipaged.cli",
        "minipaged.backends.numba_loops",
        "minipaged.kernels.paged.torch_twins",
        "minipaged.course.comparison",
        "minipaged.course.notebook",
        "minipaged.course.sketch",
    }, missing


@pytest.mark.parametrize("chapter", graded_chapters(ROOT), ids=lambda chapter: chapter.key)
def test_a_solution_gets_all_points(chapter: Chapter) -> None:
    if chapter.key in ("ch11", "ch12") and find_spec("triton") is None:
        pytest.skip("needs the package triton, which Linux has")
    isolation = find_isolation([ROOT], allow_weak=True)
    grade = grade_submission(ROOT, ROOT / "solutions", [chapter], 20261201, isolation)
    failed = [test for test in grade["tests"] if test["status"] != "passed"]
    assert failed == [] and grade["score"] == grade["extra_data"]["max_score"]

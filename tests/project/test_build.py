"""The notebook builder: the same bytes again, timings kept, staleness named, failures shown."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from minipaged.course.tasks import import_path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "tools" / "build.py"
CHAPTERS_HERE = [source.stem[:4] for source in sorted((ROOT / "notebooks" / "source").glob("ch*.py"))]

LESSON = """\
# %% [markdown]
# # A lesson

# %%
import time
print("one"); print("two")
{"a", "b", "c"}

# %%
print("one"); print("two")

# %% tags=["timing"]
time.perf_counter_ns()
"""

PICTURE = """\
# %%
import matplotlib.pyplot as plt
plt.figure(figsize=(1, 1))
plt.plot([3, 1, 2])
"""


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BUILD), "--root", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def write_source(folder: Path, stem: str, text: str) -> None:
    source = folder / "notebooks" / "source" / f"{stem}.py"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text)


def notebook(folder: Path, stem: str) -> Path:
    return folder / "notebooks" / f"{stem}.ipynb"


def cells(folder: Path, stem: str) -> list[nbformat.NotebookNode]:
    return nbformat.read(notebook(folder, stem), as_version=4).cells


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one built lesson; tests that change it take a copy of their own."""
    folder = tmp_path_factory.mktemp("course")
    write_source(folder, "ch00_lesson", LESSON)
    done = build(folder)
    assert done.stdout == "ch00_lesson: built\n" and done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def lesson(built: Path, tmp_path: Path) -> Path:
    write_source(tmp_path, "ch00_lesson", LESSON)
    shutil.copy(notebook(built, "ch00_lesson"), notebook(tmp_path, "ch00_lesson"))
    return tmp_path


def test_a_notebook_is_valid_executed_and_records_nothing_of_the_run(built: Path) -> None:
    lesson = nbformat.read(notebook(built, "ch00_lesson"), as_version=4)
    nbformat.validate(lesson)
    assert [cell.cell_type for cell in lesson.cells] == ["markdown", "code", "code", "code"]
    assert lesson.cells[2].outputs[0].text == "one\ntwo\n"
    assert lesson.metadata.language_info == {"name": "python"}
    assert [cell.metadata for cell in lesson.cells] == [{}, {}, {}, {"tags": ["timing"]}]


def test_an_unchanged_lesson_is_up_to_date_although_it_holds_a_timing(lesson: Path) -> None:
    before = notebook(lesson, "ch00_lesson").read_bytes()
    done = build(lesson)
    assert done.stdout == "ch00_lesson: up to date\n" and done.returncode == 0
    assert notebook(lesson, "ch00_lesson").read_bytes() == before


def test_measure_takes_timings_anew_and_changes_nothing_else(lesson: Path) -> None:
    before = cells(lesson, "ch00_lesson")
    build(lesson, "--measure")
    after = cells(lesson, "ch00_lesson")
    assert after[:3] == before[:3] and after[3].id == before[3].id
    assert after[3].outputs != before[3].outputs


def test_check_names_the_stale_notebook_shows_the_change_and_writes_nothing(lesson: Path) -> None:
    before = notebook(lesson, "ch00_lesson").read_bytes()
    write_source(lesson, "ch00_lesson", LESSON.replace("two", "three"))
    done = build(lesson, "--check")
    assert done.returncode == 1
    assert "ch00_lesson: STALE" in done.stdout and "python tools/build.py ch00" in done.stdout
    assert '-      "two\\n"' in done.stdout and '+      "three\\n"' in done.stdout
    assert notebook(lesson, "ch00_lesson").read_bytes() == before


def test_a_new_cell_leaves_the_ids_of_the_others_alone(lesson: Path) -> None:
    before = [cell.id for cell in cells(lesson, "ch00_lesson")]
    write_source(lesson, "ch00_lesson", LESSON.replace("# %%\nimport", "# %%\n1 + 1\n\n# %%\nimport"))
    build(lesson)
    after = [cell.id for cell in cells(lesson, "ch00_lesson")]
    assert after[:1] + after[2:] == before


def test_pictures_carry_no_version_or_time_and_are_still_pictures(tmp_path: Path) -> None:
    write_source(tmp_path, "ch01_picture", PICTURE)
    build(tmp_path)
    data = [
        output.data for output in cells(tmp_path, "ch01_picture")[0].outputs if "image/png" in output.data
    ]
    png = base64.b64decode(data[0]["image/png"])
    assert png.startswith(b"\x89PNG") and png.endswith(b"IEND\xaeB`\x82") and b"IDAT" in png
    assert b"tEXt" not in png and b"atplotlib" not in png


def test_a_cell_that_fails_fails_the_build_and_is_shown(tmp_path: Path) -> None:
    write_source(tmp_path, "ch02_broken", "# %%\nblocks = 3\n\n# %%\nblocks // 0\n")
    done = build(tmp_path)
    assert done.returncode == 1 and not notebook(tmp_path, "ch02_broken").exists()
    assert (
        "ch02_broken" in done.stderr and "blocks // 0" in done.stderr and "ZeroDivisionError" in done.stderr
    )


def test_an_output_that_names_a_folder_of_this_machine_is_refused(tmp_path: Path) -> None:
    write_source(tmp_path, "ch03_path", "# %%\nfrom pathlib import Path\nprint(Path.home() / 'model')\n")
    done = build(tmp_path)
    assert done.returncode == 1 and "names a folder of this machine" in done.stderr


def test_only_the_chapters_named_are_built_and_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    write_source(tmp_path, "ch01_one", "# %%\n1\n")
    write_source(tmp_path, "ch02_two", "# %%\n2\n")
    assert build(tmp_path, "ch02").stdout == "ch02_two: built\n"
    done = build(tmp_path, "ch09")
    assert done.returncode == 1 and "no chapter ch09; there are ch01, ch02" in done.stderr


@pytest.mark.skipif(
    os.environ.get("MINIPAGED_CHECK_BUILT") != "1",
    reason="a reader may change a notebook or an exercise; `make check` and CI ask if they are up to date",
)
@pytest.mark.parametrize("key", CHAPTERS_HERE)
@pytest.mark.first
def test_what_is_built_is_up_to_date(real_model: Path, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = import_path(BUILD).main(["--check", key])  # in this process, which has imported all that it needs
    assert code == 0, capsys.readouterr()

"""The folders against the list of chapters, and the name `kernels` against the package that owns it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from minipaged.course.outline import CHAPTERS
from minipaged.parts import LAYERS

ROOT = Path(__file__).resolve().parents[2]
FILE_STEMS = {chapter.file_stem for chapter in CHAPTERS}


def stems(pattern: str) -> set[str]:
    return {path.stem for path in ROOT.glob(pattern)}


def run_python(code: str, *paths: Path) -> str:
    """Run code at the root of the project in a fresh Python, with more folders to import from."""
    program = f"import sys; sys.path[:0] = {[str(path) for path in (ROOT, *paths)]}\n{code}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_chapters_are_numbered_from_0_to_14_without_a_gap() -> None:
    assert [chapter.number for chapter in CHAPTERS] == list(range(15))
    assert [CHAPTERS[3].key, CHAPTERS[3].file_stem] == ["ch03", "ch03_block_allocator"]


@pytest.mark.parametrize(
    "pattern",
    ["notebooks/source/*.py", "exercises/.originals/*.py", "solutions/*.py", "tests/answers/*.py"],
)
def test_a_course_folder_holds_nothing_but_chapters(pattern: str) -> None:
    assert stems(pattern) <= FILE_STEMS


def test_every_grader_belongs_to_a_chapter() -> None:
    assert {stem.removeprefix("test_") for stem in stems("tests/test_ch[0-9]*.py")} <= FILE_STEMS


def test_every_source_has_its_notebook() -> None:
    assert stems("notebooks/source/*.py") <= stems("notebooks/*.ipynb")


def test_exercises_solutions_graders_and_answers_are_of_the_same_chapters() -> None:
    graders = {stem.removeprefix("test_") for stem in stems("tests/test_ch[0-9]*.py")}
    assert stems("exercises/.originals/*.py") == stems("solutions/*.py") == graders
    assert stems("tests/answers/*.py") == graders
    assert graders <= stems("exercises/*.py")


def test_the_course_has_a_start() -> None:
    assert "ch00_start" in stems("notebooks/*.ipynb")


def test_a_layer_of_the_engine_lies_in_the_module_its_chapter_is_named_after() -> None:
    stems = {chapter.stem: chapter for chapter in CHAPTERS}
    for stem in LAYERS:
        module = stems[stem].module
        folder = "kernels/paged" if "kernels" in module else "minipaged"
        assert (ROOT / folder / f"{stem}.py").exists()


def test_no_part_is_built_by_two_chapters_but_the_allocator_the_old_way_and_the_new() -> None:
    parts = Counter(part for parts in LAYERS.values() for part in parts)
    assert {part for part, count in parts.items() if count > 1} == {"block_allocator"}
    assert [stem for stem, parts in LAYERS.items() if "block_allocator" in parts] == [
        "contiguous", "block_allocator"
    ]


def test_the_folder_kernels_is_no_package() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()


STAND_IN = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {}) if name[0].isupper() else lambda *args, **kwargs: lambda decorated: decorated
"""


def test_transformers_models_import_from_the_root_beside_a_distribution_called_kernels(
    tmp_path: Path,
) -> None:
    import_utils = pytest.importorskip("transformers.utils.import_utils")
    version = import_utils.KERNELS_MIN_VERSION  # another version would be ignored, and nothing tested
    stand_in = tmp_path / "kernels" / "__init__.py"
    metadata = tmp_path / f"kernels-{version}.dist-info" / "METADATA"
    stand_in.parent.mkdir()
    stand_in.write_text(STAND_IN)
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {version}\n")
    code = """
from transformers import LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM
print(sys.modules["kernels"].__file__)
"""
    assert run_python(code, tmp_path) == str(stand_in)


def test_minipaged_kernels_imports_without_triton_and_says_so() -> None:
    code = """
sys.modules["triton"] = None
import minipaged.kernels, minipaged.kernels.paged.torch_twins
print(minipaged.kernels.triton_status())
"""
    assert run_python(code) == "TritonStatus(installed=False, interpret=False)"


def test_importing_minipaged_kernels_imports_neither_torch_nor_triton() -> None:
    assert run_python("import minipaged.kernels; print({'torch', 'triton'} & set(sys.modules))") == "set()"

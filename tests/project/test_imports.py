"""Who imports whom: the engine knows nothing of the course, and no two modules need each other.

Every import counts, also one inside a function or under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    **{file: ("minipaged", *file.relative_to(ROOT / "minipaged").with_suffix("").parts)
       for file in (ROOT / "minipaged").rglob("*.py")},
    **{file: ("minipaged", "kernels", *file.relative_to(ROOT / "kernels").with_suffix("").parts)
       for file in (ROOT / "kernels").rglob("*.py")},
}
MODULES = {".".join(parts).removesuffix(".__init__"): file for file, parts in FILES.items()}
# On the first level: what the reading list of docs/architecture.md names, and nothing else.
ENGINE = {
    "llm", "engine", "engine_config", "request", "scheduler", "block_manager", "block_allocator",
    "block_table", "copy_on_write", "prefix_cache", "preemption", "paged_attention", "batch", "model",
    "operators", "linear", "sampler", "stop_rules", "beam_search", "detokenizer", "parts", "invariants",
    "params", "config", "errors", "stats", "kv_memory", "contiguous", "measure", "__init__", "__main__",
}


def imported(name: str, file: Path) -> set[str]:
    """The package's modules that a module imports; `from minipaged.a import b` is a.b where that is one."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {each if each in MODULES else str(node.module) for each in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {each for each in found if each in MODULES} - {name}


GRAPH = {name: imported(name, file) for name, file in MODULES.items()}


def test_the_first_level_of_the_package_is_the_engine() -> None:
    assert sorted(file.stem for file in (ROOT / "minipaged").glob("*.py")) == sorted(ENGINE)
    packages = {file.parent.name for file in (ROOT / "minipaged").glob("*/__init__.py")}
    assert packages == {"backends", "cli", "course", "kernels", "loading", "pictures", "simulation"}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_the_course_and_the_command_line_import_the_course(name: str) -> None:
    if not name.startswith(("minipaged.course", "minipaged.cli", "minipaged.__main__")):
        texts = [node.value for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8")))
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        assert not [text for text in texts if text.startswith("minipaged.course")]  # for import_module
        assert not {each for each in GRAPH[name] if each.startswith(("minipaged.course", "minipaged.cli"))}


def test_no_module_needs_itself() -> None:
    try:
        list(TopologicalSorter(GRAPH).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_class_has_a_name_of_its_own_and_is_called_by_it() -> None:
    """`Work` is one thing, wherever it is read; and an alias would be a second name for it."""
    places: dict[str, list[str]] = {}
    aliases = []
    for name, file in MODULES.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("minipaged"):
                aliases += [f"{name}: {alias.asname}" for alias in node.names
                            if alias.asname and alias.name[0].isupper()]
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
    assert aliases == []


def test_a_circle_is_found_wherever_the_import_stands(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("if TYPE_CHECKING:\n    from minipaged.engine import Engine\n"
                    "def f():\n    import minipaged.llm\n    from minipaged import batch, LLM\n")
    assert imported("a", file) == {"minipaged.engine", "minipaged.llm", "minipaged.batch", "minipaged"}

"""The package as a submission may see it: without the functions that it is to write.

`from minipaged import BlockAllocator` would be the whole answer to chapter 3. So the sandbox gets a copy of
the package in which those functions are what they are in a fresh exercise: they raise NotImplementedError.
The exercises themselves say which: every function that has a task in it. Of the rest there is what a layer
builds on: the engine, without numba's loops, which are the same answers in another form; for chapters 11 and
12 the kernels, without their PyTorch twins; and what the tests call on this side. Students can still read the
package's source at home. Copying from it does not cheat the grader: talk with them.
"""

from __future__ import annotations

import ast
import re
import shutil
from functools import cache
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import minipaged
from minipaged.course.outline import Chapter
from minipaged.course.tasks import original_file

PACKAGE = Path(str(minipaged.__file__)).parent
# In these chapters, the tests give a task what another task of the chapter builds. There, only the functions
# of the task itself are taken out; elsewhere all of the chapter's.
BY_TASK = ("ch06",)
KERNELS = "kernels/paged"  # where the kernels are in the package
OTHER_ANSWERS = ("backends/numba_loops.py", f"{KERNELS}/torch_twins.py")
# What is there besides the engine's own modules.
FOLDERS = ("backends/", "loading/", "kernels/")
FILES = (
    *(f"course/{name}.py" for name in ("__init__", "expectation", "layer", "outline", "seed", "tasks")),
    *(f"course/{name}.py" for name in ("kernel_run", "grading/__init__", "grading/limits")),
    *(f"course/grading/{name}.py" for name in ("subject", "wire")),
    *(
        f"course/chapters/{name}.py"
        for name in ("__init__", "ch08_scheduler/__init__", "ch10_engine/__init__")
    ),
    *(f"course/chapters/{name}.py" for name in ("ch08_scheduler/dry_engine", "ch10_engine/toy_model")),
    *(f"simulation/{name}.py" for name in ("__init__", "preemption_costs", "simulator", "traces")),
)
_STUB = re.compile(r"task (\d+): ")

Functions = dict[str, str]  # "BlockAllocator.free": what its stub says


def package_files() -> dict[str, Path]:
    """The package's Python files by their paths within it; those of kernels/ too, which may lie elsewhere."""
    files = {file.relative_to(PACKAGE).as_posix(): file for file in PACKAGE.rglob("*.py")}
    kernels = find_spec("minipaged.kernels.paged")
    if kernels is not None and kernels.origin is not None:
        files |= {f"{KERNELS}/{file.name}": file for file in Path(kernels.origin).parent.glob("*.py")}
    return files


@cache
def hidden_functions(root: Path, chapter: Chapter, task: int) -> Functions:
    """The functions that are taken out while `task` is judged, by qualified name."""
    file = original_file(root, chapter)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    hidden: Functions = {}
    for name, function in _definitions(tree).items():
        messages = _messages(function)
        if messages and (chapter.key not in BY_TASK or task in map(_task_of, messages)):
            hidden[name] = messages[0]
    for statement in tree.body:  # paged_attention = paged_attention_reference
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value) in hidden:
            hidden[ast.unparse(statement.targets[0])] = hidden[ast.unparse(statement.value)]
    for helper in _helpers(tree, chapter) - hidden.keys():
        hidden[helper] = next(iter(hidden.values()))
    return hidden


def copy_package(target: Path, chapter: Chapter, hidden: Functions) -> None:
    """Write the package's Python files to target/minipaged, without the functions in `hidden`, and without
    other answers to the chapter's tasks."""
    is_kernels = chapter.module.startswith("minipaged.kernels.")
    names = "|".join(re.escape(name.split(".")[-1]) for name in hidden)
    may_define = re.compile(rf"\bdef ({names})\b")
    for name, file in package_files().items():
        is_engine = "/" not in name or name.startswith(FOLDERS)
        if name in OTHER_ANSWERS or not (is_engine or name in FILES):
            continue
        if name.startswith(KERNELS) and not is_kernels:
            continue
        copy = target / "minipaged" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        if may_define.search(text):
            copy.write_text(_without(text, hidden), encoding="utf-8")
            continue
        for whole in (file, Path(cache_from_source(str(file)))):  # what Python has compiled, too
            if whole.is_file():
                place = copy.parent / whole.relative_to(file.parent)
                place.parent.mkdir(exist_ok=True)
                shutil.copy2(whole, place)
                place.chmod(0o644)


def _without(text: str, hidden: Functions) -> str:
    """The module's text with the bodies of the hidden functions replaced; as it is, if it has none."""
    tree = ast.parse(text)
    found = [(name, function) for name, function in _definitions(tree).items() if name in hidden]
    for name, function in found:
        function.body = ast.parse(f"raise NotImplementedError({hidden[name]!r})").body
    return ast.unparse(tree) if found else text


def _definitions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Functions and methods, by qualified name."""
    found = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.ClassDef):
            for part in statement.body:
                if isinstance(part, ast.FunctionDef):
                    found[f"{statement.name}.{part.name}"] = part
    return found


def _helpers(exercise: ast.Module, chapter: Chapter) -> set[str]:
    """Private methods that the package's class has, and the exercise's class of that name has not: they were
    taken out of the exercise, being a part of the answer."""
    file = PACKAGE / f"{chapter.stem}.py"
    if not file.is_file():
        return set()
    theirs, ours = _definitions(exercise), _definitions(ast.parse(file.read_text(encoding="utf-8")))
    stands_alone = {part.name for part in exercise.body if isinstance(part, ast.ClassDef) and not part.bases}
    private = {name for name in ours if re.search(r"\._[a-z]", name) and name.split(".")[0] in stands_alone}
    return private - theirs.keys()


def _messages(function: ast.FunctionDef) -> list[str]:
    """What the stubs in a function say."""
    texts = [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and re.match(r"ch\d\d_\w+, task \d+: ", text)]


def _task_of(message: str) -> int:
    found = _STUB.search(message)
    return int(found[1]) if found else 0

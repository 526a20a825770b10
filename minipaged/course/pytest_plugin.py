"""What pytest needs to know about graders: what they judge (`--impl`), and which task a test belongs to.

    pytest tests/test_ch03_block_allocator.py                      the package, as every other test
    pytest tests/test_ch03_block_allocator.py --impl exercises     a reader's own file

pyproject.toml loads it. `grader.py` and `report.py` make points and words of the results.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minipaged.course.outline import CHAPTERS, Chapter
from minipaged.course.seed import fill_new_memory

ISOLATED = "isolated:"  # before the number of the warden's socket, in --impl
STEMS = {f"test_{chapter.file_stem}": chapter for chapter in CHAPTERS}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--impl",
        default="minipaged",
        metavar="minipaged|solutions|exercises|PATH",
        help="whose layers the graders of the chapters judge (default: the package's)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "task(number): the task of the chapter that this test judges")
    config.addinivalue_line("markers", "hidden: a check whose expected values are never shown")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A challenge goes beyond the engine, so the package has no answer to be judged. In isolation, the tests
    of a task come one after the other, because each task may need a sandbox of its own; and hidden checks
    come last, so that a submission can't show in a public one what it has heard in them."""
    for item in items:
        if item.path.parent.name == "hidden":
            item.add_marker(pytest.mark.hidden)
    if config.getoption("--impl").startswith(ISOLATED):
        items.sort(key=lambda item: (item.get_closest_marker("hidden") is not None, task_number(item) or 0))
    if config.getoption("--impl") != "minipaged":
        return
    for item in items:
        number = task_number(item)
        tasks = {task.number: task for task in getattr(getattr(item, "module", None), "TASKS", ())}
        if number in tasks and tasks[number].is_challenge:
            item.add_marker(
                pytest.mark.skip(reason="a challenge beyond the engine; judged with --impl solutions")
            )


def task_number(item: pytest.Item) -> int | None:
    """The task that a test belongs to; None for a test outside the graders."""
    marker = item.get_closest_marker("task")
    return marker.args[0] if marker else None


@pytest.fixture(scope="module")
def layer(request: pytest.FixtureRequest) -> Iterator[object]:
    """The subject under test; see `minipaged.course.layer`, and for grades `grading/remote.py`."""
    chapter, impl = chapter_of(Path(str(request.path))), request.config.getoption("--impl")
    if not impl.startswith(ISOLATED):
        from minipaged.course.layer import load_layer

        subject = load_layer(request.config.rootpath, chapter, impl)
        fill_new_memory()
        yield subject
        fill_new_memory(False)
        return
    from minipaged.course.grading.remote import RemoteLayer, Warden

    remote = RemoteLayer(chapter, Warden(int(impl.removeprefix(ISOLATED))))
    yield remote
    remote.close()


@pytest.fixture(autouse=True)
def _subject_of_this_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """In isolation, tell the layer which task is judged, and print what the submission printed."""
    if "layer" not in request.fixturenames or not request.config.getoption("--impl").startswith(ISOLATED):
        yield
        return
    remote = request.getfixturevalue("layer")
    remote.begin(task_number(request.node) or 0)
    yield
    print(remote.take_printed(), end="")


def chapter_of(file: Path) -> Chapter:
    """The chapter whose grader a file is."""
    if file.stem not in STEMS:
        raise ValueError(f"the fixture `layer` is for graders; {file.name} is none")
    return STEMS[file.stem]

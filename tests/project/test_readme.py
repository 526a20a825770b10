"""README and docs name nothing that isn't there: files, links, symbols, commands, versions, chapters."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import matplotlib.image
import numpy as np
import pytest

from minipaged.cli import main
from minipaged.course.outline import CHAPTERS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {name: (ROOT / name).read_text(encoding="utf-8")
         for name in ("README.md", "docs/install.md", "docs/architecture.md", "docs/instructors.md")}
COMMANDS = re.findall(r"^    +(\S.*)$", README, re.MULTILINE)  # the indented blocks
PICTURE = ROOT / "docs" / "memory.png"


def commands(program: str) -> list[str]:
    """The commands of the README that begin with a program, each without its comment."""
    return [line.split("#")[0].strip() for line in COMMANDS if line.startswith(f"{program} ")]


@pytest.mark.parametrize("page", PAGES)
def test_every_file_named_exists(page: str) -> None:
    names = re.findall(r"`((?:minipaged|kernels|docs|tests|tools|exercises|solutions|notebooks)/[\w./-]*|"
                       r"[\w-]+\.(?:txt|toml)|LICENSE|CONTRIBUTING\.md)`", PAGES[page])
    made = ("exercises/backups/", "tests/hidden/")  # on the machine of a reader, or of an instructor
    assert [name for name in names if not name.startswith(made) and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_picture_that_is_not_on_the_web_exists(page: str) -> None:
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", PAGES[page]) if "://" not in target]
    assert page != "README.md" or str(PICTURE.relative_to(ROOT)) in targets
    here = (ROOT / page).parent
    assert [target for target in targets if not (here / target.split("#")[0]).exists()] == []


def symbols_of_the_eight_steps() -> list[tuple[str, str]]:
    """(file, symbol) of the third column of the architecture's first table."""
    found = []
    for row in re.findall(r"^\| \d \|.*$", PAGES["docs/architecture.md"], re.MULTILINE):
        ours = row.split(" | ")[2]
        file = ""
        for name in re.findall(r"`([^`]+)`", ours):
            if name.endswith(".py"):
                file = name
            else:
                found.append((file, name))
    return found


def test_every_symbol_of_a_request_s_eight_steps_is_where_it_is_said_to_be() -> None:
    symbols = symbols_of_the_eight_steps()
    assert len(symbols) >= 12
    for file, name in symbols:
        text = (ROOT / file).read_text(encoding="utf-8")
        if name == "Request.output":
            text = (ROOT / "minipaged/request.py").read_text(encoding="utf-8")
        assert re.search(rf"^ *(?:def|class) {name.split('.')[-1]}\b", text, re.MULTILINE), (file, name)


def test_the_reading_list_has_every_module_of_the_first_level() -> None:
    listed = set(re.findall(r"`minipaged/(\w+)\.py`", PAGES["docs/architecture.md"]))
    first_level = {file.stem for file in (ROOT / "minipaged").glob("*.py")}
    assert listed == first_level - {"__init__", "__main__"}


def test_the_readme_fits_two_screens_and_a_bit() -> None:
    assert len(README.splitlines()) <= 115


@pytest.mark.parametrize("command", commands("make"))
def test_every_make_target_named_exists(command: str) -> None:
    targets = "".join((ROOT / name).read_text() for name in ("Makefile", "learn.mk"))
    assert f"\n{command.split()[1]}:" in targets


@pytest.mark.parametrize("command", commands("minipaged"))
def test_every_command_named_exists_with_its_subcommand(command: str) -> None:
    names, group = command.split()[1:], main
    while isinstance(group, click.Group):
        found = group.get_command(click.Context(group), names[0])
        assert found is not None, f"minipaged has no command {names[0]}"
        names, group = names[1:], found


def test_the_commands_that_a_reader_or_a_teacher_should_try_first_are_there() -> None:
    first = {command.split()[1] for command in commands("minipaged")}
    learn = {"doctor", "demo", "chat", "generate", "check", "hint", "reset"}
    assert first == learn | {"grade", "handout"}
    assert [command.split()[1] for command in commands("make")] == ["learn", "test"]


def test_the_torch_to_install_by_hand_is_the_one_that_is_pinned() -> None:
    (version,) = re.findall(r"torch==(\S+)", PAGES["docs/install.md"])
    assert f"\ntorch=={version}\n" in (ROOT / "constraints.txt").read_text()


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.key)
def test_a_chapter_is_said_to_be_here_exactly_when_it_is(chapter) -> None:
    (row,) = re.findall(rf"^\| {chapter.number} \|.*$", README, re.MULTILINE)
    is_here = (ROOT / "notebooks" / f"{chapter.file_stem}.ipynb").exists()
    assert chapter.title in row
    assert row.endswith("| here |" if is_here else "| to come |")
    assert (f"](notebooks/{chapter.file_stem}.ipynb)" in row) == is_here


def test_the_python_example_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert '"smollm2-135m"' in example
    exec(example.replace("smollm2-135m", "tiny"), {})  # no test downloads a model
    assert capsys.readouterr().out.strip()


def test_the_picture_is_small_and_is_what_its_command_draws(real_model: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "picture.py", tmp_path / "new.png"], check=True)
    drawn, shown = (matplotlib.image.imread(path) for path in (tmp_path / "new.png", PICTURE))
    assert PICTURE.stat().st_size < 200_000
    assert np.array_equal(drawn, shown), "stale: run python tools/picture.py"

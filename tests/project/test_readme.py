"""The README names nothing that isn't there: files, links, commands, versions, chapters."""

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
COMMANDS = re.findall(r"^    +(\S.*)$", README, re.MULTILINE)  # the indented blocks
PICTURE = ROOT / "docs" / "memory.png"


def commands(program: str) -> list[str]:
    """The commands of the README that begin with a program, each without its comment."""
    return [line.split("#")[0].strip() for line in COMMANDS if line.startswith(f"{program} ")]


def test_every_file_named_exists() -> None:
    names = re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|txt|toml)|LICENSE)`", README)
    paths = [name for name in names if not name.startswith(("HuggingFaceTB/", ".venv/"))]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_link_and_picture_that_is_not_on_the_web_exists() -> None:
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", README) if "://" not in target]
    assert str(PICTURE.relative_to(ROOT)) in targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("command", commands("make"))
def test_every_make_target_named_exists(command: str) -> None:
    assert f"\n{command.split()[1]}:" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("command", commands("minipaged"))
def test_every_command_named_exists_with_its_subcommand(command: str) -> None:
    names, group = command.split()[1:], main
    while isinstance(group, click.Group):
        found = group.get_command(click.Context(group), names[0])
        assert found is not None, f"minipaged has no command {names[0]}"
        names, group = names[1:], found


def test_the_commands_that_a_reader_or_a_teacher_should_try_first_are_there() -> None:
    first = {command.split()[1] for command in commands("minipaged")}
    learn = {"fetch", "doctor", "demo", "chat", "generate", "bench", "check", "hint", "reset"}
    assert first == learn | {"grade", "handout"}
    assert [command.split()[1] for command in commands("make")] == ["learn", "test", "learn"]


def test_the_torch_to_install_by_hand_is_the_one_that_is_pinned() -> None:
    (version,) = re.findall(r"torch==(\S+)", README)
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

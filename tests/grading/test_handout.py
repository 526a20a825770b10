"""What is handed out works where it lands, and has no answers: students, Gradescope, GitHub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import click
import pytest
import yaml

from minipaged.cli import main
from minipaged.course.grading.handout import make_gradescope, make_handout
from minipaged.course.tasks import find_chapter, graded_chapters

ROOT = Path(__file__).resolve().parents[2]
CH03, CH06 = (find_chapter(ROOT, key) for key in ("ch03", "ch06"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="make and sh")


@pytest.fixture(scope="module")
def handout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("handout") / "course"
    make_handout(ROOT, out)
    return out


def test_it_has_no_answers(handout: Path) -> None:
    for chapter in graded_chapters(ROOT):
        fresh = (ROOT / "exercises" / ".originals" / f"{chapter.file_stem}.py").read_text()
        assert (handout / "exercises" / f"{chapter.file_stem}.py").read_text() == fresh
        assert (handout / "tests" / f"test_{chapter.file_stem}.py").is_file()
    gone = ("solutions", "tests/answers", "tests/hidden", ".git", "docs/instructors.md", "tools")
    assert not any((handout / name).exists() for name in gone)
    marked = [file for file in handout.rglob("*")
              if file.is_file() and b"### BEGIN SOLUTION\n" in file.read_bytes()]
    assert marked == []
    with pytest.raises(ValueError, match="needs a new folder"):
        make_handout(ROOT, handout)
    with pytest.raises(ValueError, match="inside the course"):
        make_handout(ROOT, ROOT / "somewhere")


def answer_lines() -> list[tuple[str, str]]:
    """Pairs of lines of code that follow each other in an answer, and are more than a few letters."""
    pairs = []
    for file in sorted((ROOT / "solutions").glob("ch*.py")):
        for answer in re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", file.read_text(), re.DOTALL):
            lines = [line.strip() for line in answer.splitlines()]
            code = [line for line in lines if line and not line.startswith("#")]
            pairs += [(one, two) for one, two in pairwise(code) if len(one + two) > 40]
    return pairs


def test_its_notebooks_show_no_answers(handout: Path) -> None:
    """Two lines of an answer, one behind the other, in a cell or in what it has printed."""
    pairs = answer_lines()
    assert len(pairs) > 500
    shown = []
    for file in (handout / "notebooks").rglob("*"):
        if file.suffix not in (".ipynb", ".py"):
            continue
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            printed = [out.get("text", []) for cell in cells for out in cell.get("outputs", [])]
            text = "\n".join("".join(part) for part in [*(cell["source"] for cell in cells), *printed])
        lines = [line.strip() for line in text.splitlines()]
        there = set(pairwise(lines))
        shown += [(file.name, pair) for pair in pairs if pair in there]
    assert shown == []


def test_every_file_and_command_that_it_names_is_there(handout: Path) -> None:
    for page in [handout / "README.md", *(handout / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"`((?:docs|exercises|notebooks|minipaged|kernels|tests|tools)/[\w./-]+)`", text)
        named += re.findall(r"\]\(([^)#:]+)\)", text)
        missing = [name for name in named if not ((handout / name).exists() or (page.parent / name).exists())]
        assert [name for name in missing if not name.startswith("exercises/backups")] == [], page.name
        for command in re.findall(r"(?:`|    )minipaged (\w+)", text) if page.name == "README.md" else []:
            assert main.get_command(click.Context(main), command) is not None
    assert "CONTRIBUTING" not in (handout / "README.md").read_text()


def test_its_two_commands_work(handout: Path) -> None:
    """One to start and one to check, in the folder as it is; the environment is the one that runs this."""
    bin_folder = handout / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    scripts = {"minipaged": f'PYTHONPATH={handout} exec {sys.executable} -m minipaged "$@"\n',
               "jupyter": 'echo "jupyter $@"\n'}
    for name, text in scripts.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}")
        (bin_folder / name).chmod(0o755)
    (handout / ".venv" / "installed").touch()
    dry = subprocess.run(["make", "-n", "learn"], cwd=handout, capture_output=True, text=True)
    assert dry.returncode == 0 and "minipaged fetch" in dry.stdout
    done = subprocess.run(["make", "-o", "model", "learn"], cwd=handout, capture_output=True, text=True)
    assert done.returncode == 0 and "/lab/tree/notebooks" in done.stdout, done.stderr
    done = subprocess.run(["make", "ch03"], cwd=handout, capture_output=True, text=True)
    assert "0 of 100 points" in done.stdout and "Next: exercises/ch03_block_allocator.py" in done.stdout, done
    solution = (ROOT / "solutions" / f"{CH03.file_stem}.py").read_text(encoding="utf-8")
    (handout / "exercises" / f"{CH03.file_stem}.py").write_text(solution, encoding="utf-8")
    done = subprocess.run(["make", "ch03"], cwd=handout, capture_output=True, text=True)
    assert done.returncode == 0 and "100 of 100 points" in done.stdout, done.stdout


# -- Gradescope --------------------------------------------------------------------------------------------

# As root, and in mounts of its own: what the container has at /autograder; Python where others can read it,
# as it is there; and then without the right to make namespaces.
CONTAINER = """
set -e
mkdir -p /autograder
mount --bind "$1" /autograder
base=$2
case $base in /root/*)
    mkdir -p "$1/stash"
    mount --rbind "$base" "$1/stash"
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir -p "$base"
    mount --rbind "$1/stash" "$base";;
esac
exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin sh -c 'cd /autograder && ./run_autograder'
"""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounts what a container has")
def test_gradescope_s_folders(tmp_path: Path) -> None:
    """The zip file's content lies in source/, run_autograder above it, the student's files in submission/."""
    autograder = tmp_path / "autograder"
    make_gradescope(ROOT, autograder / "source", [CH03])
    for name in ("setup.sh", "run_autograder"):
        file = autograder / "source" / name
        assert subprocess.run(["bash", "-n", file]).returncode == 0 and os.access(file, os.X_OK)
    assert not (autograder / "source" / "course" / "solutions").exists()
    hidden = autograder / "source" / "course" / "tests" / "hidden"
    hidden.mkdir()
    (hidden / f"test_{CH03.file_stem}.py").write_text(
        "import pytest\n\n@pytest.mark.task(1)\ndef test_mine(layer):\n    assert layer.seen() == []\n"
    )
    (autograder / "source" / "run_autograder").rename(autograder / "run_autograder")
    for name in ("submission", "results", "venv/bin"):
        (autograder / name).mkdir(parents=True)
    program = autograder / "venv" / "bin" / "minipaged"
    program.write_text(f"#!/bin/sh\nPYTHONPATH=/autograder/source/course exec {sys.executable} -m minipaged "
                       '"$@"\n')
    program.chmod(0o755)
    look = """
def seen():
    import os
    found = []
    for top in ("/autograder", "/autograder/source", "/autograder/source/course", "/autograder/submission"):
        try:
            found += [f"{top}/{name}" for name in os.listdir(top) if top != "/autograder"]
        except OSError:
            pass
    return found
"""
    solution = (ROOT / "solutions" / f"{CH03.file_stem}.py").read_text(encoding="utf-8") + look
    (autograder / "submission" / f"{CH03.file_stem}.py").write_text(solution, encoding="utf-8")
    command = ["unshare", "--mount", "sh", "-c", CONTAINER, "sh", str(autograder), sys.base_prefix]
    done = subprocess.run(command, capture_output=True, text=True)
    if "mount: " in done.stderr or "unshare failed" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((autograder / "results" / "results.json").read_text())
    assert results["score"] == 100 and results["extra_data"]["isolation"] == "user", results
    assert results["execution_time"] >= 0 and results["tests"][0]["max_score"] == 10


# -- GitHub Actions ----------------------------------------------------------------------------------------


def test_the_workflow_pins_what_it_runs_and_can_fail() -> None:
    text = (ROOT / "docs" / "examples" / "grade.yml").read_text(encoding="utf-8")
    (job,) = yaml.safe_load(text)["jobs"].values()
    checkouts = [step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/checkout")]
    assert re.fullmatch(r"[0-9a-f]{40}", checkouts[0]["ref"]), "students can't change which tests count"
    assert all(re.search(r"@v\d", step["uses"]) for step in job["steps"] if "uses" in step)
    commands = " ".join(step.get("run", "") for step in job["steps"])
    (version,) = re.findall(r"torch==(\S+)", commands)
    assert f"\ntorch=={version}\n" in (ROOT / "constraints.txt").read_text()
    assert "-c course/constraints.txt" in text
    (grade,) = re.findall(r"minipaged (grade .*)", commands)
    command = main.get_command(click.Context(main), "grade")
    assert command is not None
    command.make_context("grade", [word for word in grade.split()[1:] if word != "submission"] + [str(ROOT)])
    assert "--fail-under" in grade

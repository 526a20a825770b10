"""What the next contributor relies on: pages name what is there; forms and workflow can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "learn.mk"))
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FORMS = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*_*.yml"))


def test_every_file_and_command_that_contributors_are_told_of_exists() -> None:
    code = re.findall(r"`([^`]+)`", PAGE)
    for text in code:
        words = text.split()
        if words[0] == "make" and len(words) > 1:
            assert f"\n{words[1]}:" in MAKEFILE, text
        paths = [word for word in words if re.fullmatch(r"[\w./-]+/[\w./-]*|[\w]+\.(md|toml|txt|py)", word)]
        for path in paths:
            if not path.startswith(".venv/") and "chNN" not in path and path != "figures.py":
                assert (ROOT / path).exists(), text
    assert len(code) > 40


def test_the_changelog_tells_the_course_and_the_code_apart() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert "### Course" in newest and "### Code" in newest


def test_the_workflow_runs_the_readme_s_test_command_with_the_pinned_torch() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    commands = "\n".join(step.get("run", "") for step in job["steps"])
    (version,) = re.findall(r"torch==(\S+)", commands)
    assert "make test" in commands.splitlines()
    assert f"\ntorch=={version}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert all("@" in step["uses"] for step in job["steps"] if "uses" in step)
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_asks_for_what_its_fault_needs(form: Path) -> None:
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert content["name"] and content["description"]
    fields = [part for part in content["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields) >= 3
    assert all(part["attributes"]["label"] and part["validations"]["required"] for part in fields)


@pytest.mark.parametrize("file", sorted(ROOT.glob(".github/**/*.yml")), ids=lambda file: file.stem)
def test_every_file_for_github_is_a_mapping_in_yaml(file: Path) -> None:
    assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)


def test_there_are_three_forms() -> None:
    assert [form.stem for form in FORMS] == ["engine_fault", "right_answer_marked_wrong", "text_fault"]

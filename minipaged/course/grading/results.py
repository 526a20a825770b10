"""A grade in the forms that others read: Gradescope's results.json, JUnit XML, and lines for people."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from tempfile import NamedTemporaryFile
from xml.etree import ElementTree

from minipaged.course.grading.grade import Grade

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_whole(file: Path, data: bytes | str) -> None:
    """Write a file in one piece: a reader sees the old one or the new one, also after a crash."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    with NamedTemporaryFile("wb", dir=file.parent, prefix=".", suffix=".part", delete=False) as draft:
        draft.write(data)
    os.chmod(draft.name, 0o644)
    os.replace(draft.name, file)


def to_json(grade: Grade) -> str:
    """Gradescope's results.json."""
    return json.dumps(grade, indent=1, ensure_ascii=True) + "\n"


def to_junit(grade: Grade) -> bytes:
    """JUnit XML: a test case for each task, and the failure's words; then the seed and the isolation."""
    tests = grade["tests"]
    suite = ElementTree.Element("testsuite", name="minipaged", tests=str(len(tests)))
    suite.set("failures", str(sum(test["status"] != "passed" for test in tests)))
    for test in tests:
        chapter, _, title = test["name"].partition(" ")
        case = ElementTree.SubElement(suite, "testcase", classname=chapter, name=title)
        if test["status"] != "passed":
            message = f"{test['score']} of {test['max_score']} points"
            ElementTree.SubElement(case, "failure", message=message).text = _NOT_XML.sub("?", test["output"])
    ElementTree.SubElement(suite, "system-out").text = _NOT_XML.sub("?", grade["output"])
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)


def to_text(grade: Grade) -> str:
    """Lines for a terminal: a task each, with the words of those that failed."""
    lines = []
    for test in grade["tests"]:
        is_passed = test["status"] == "passed"
        points = f"{test['score']:>5}/{test['max_score']}"
        lines.append(f"  {'✓' if is_passed else '✗'} {test['name']:<80}{points}")
        lines += [] if is_passed else [f"      {line}" for line in test["output"].splitlines()]
    total = f"{grade['score']} of {grade['extra_data']['max_score']} points"
    return "\n".join([*lines, "", total, grade["output"]])

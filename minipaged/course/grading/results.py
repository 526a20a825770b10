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
        try:
            draft.write(data)
            draft.flush()
            os.chmod(draft.name, 0o644)
            os.replace(draft.name, file)
        except BaseException:
            os.unlink(draft.name)
            raise


def to_json(grade: Grade) -> str:
    """Gradescope's results.json."""
    return json.dumps(grade, indent=1, ensure_ascii=True) + "\n"


def to_junit(grade: Grade) -> bytes:
    """JUnit XML: a test case for each task, with the words of its failure, or of its error if it ran out of
    time or if there was no file to judge; then the seed and the isolation."""
    tests, extra = grade["tests"], grade["extra_data"]
    cases = ElementTree.Element("testsuite", name="minipaged", tests=str(len(tests)))
    counts = {"failure": 0, "error": 0}
    for test in tests:
        chapter, _, title = test["name"].partition(" ")
        seconds = f"{test['extra_data']['seconds']:.1f}"
        case = ElementTree.SubElement(cases, "testcase", classname=chapter, name=title, time=seconds)
        if test["status"] != "passed":
            is_error = test["extra_data"]["state"] in ("timed out", "no file")
            kind = "error" if is_error else "failure"
            counts[kind] += 1
            message = f"{test['score']} of {test['max_score']} points"
            ElementTree.SubElement(case, kind, message=message).text = _NOT_XML.sub("?", test["output"])
    cases.set("failures", str(counts["failure"]))
    cases.set("errors", str(counts["error"]))
    cases.set("time", f"{grade['execution_time']:.1f}")
    cases.set("timestamp", extra["graded_at"])
    ElementTree.SubElement(cases, "system-out").text = _NOT_XML.sub("?", grade["output"])
    return ElementTree.tostring(cases, encoding="utf-8", xml_declaration=True)


def to_text(grade: Grade) -> str:
    """Lines for a terminal: the isolation, then a task each, with the words of those that failed."""
    isolation, *more = grade["output"].splitlines()
    lines = [isolation, ""]
    for test in grade["tests"]:
        is_passed, state = test["status"] == "passed", test["extra_data"]["state"]
        points = f"{test['score']:>5}/{test['max_score']}{'  timed out' * (state == 'timed out')}"
        lines.append(f"  {'✓' if is_passed else '✗'} {test['name']:<80}{points}")
        lines += [] if is_passed else [f"      {line}" for line in test["output"].splitlines()]
    total = f"{grade['score']} of {grade['extra_data']['max_score']} points"
    return "\n".join([*lines, "", total, *more])

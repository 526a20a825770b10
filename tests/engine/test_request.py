"""Requests and sequences: who writes which field is what the table in minipaged/request.py says."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import minipaged.request
from minipaged.request import Request, Sequence

PACKAGE = Path(minipaged.request.__file__).parent
FIXED = {  # set once, when the request is made
    "num_prompt_tokens", "request_id", "prompt", "prompt_token_ids", "params", "priority", "arrival", "seed",
}
CHANGING_METHODS = {"append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort"}


def table() -> dict[str, set[str]]:
    """The writers of each field, as the docstring has them."""
    text = str(minipaged.request.__doc__)
    writers: dict[str, set[str]] = defaultdict(set)
    for line in text[text.index("    field ") :].splitlines()[1:]:
        names, module, _ = re.split(r"\s{2,}", line.strip(), maxsplit=2)
        for name in names.split(", "):
            writers[name].add(module)
    return writers


def writes(tree: ast.AST) -> set[str]:
    """The attributes that some code sets or changes: `a.x = 1`, `a.x.append(1)`, `a.x[0] = 1`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if isinstance(node.value, ast.Attribute):  # seq.token_ids[-1] = 3, del seq.token_ids[0]
                found.add(node.value.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            found.add(str(ast.literal_eval(node.args[1])) if isinstance(node.args[1], ast.Constant) else "")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in CHANGING_METHODS and isinstance(owner, ast.Attribute):
                found.add(owner.attr)
    return found


def test_the_table_names_every_field_that_changes() -> None:
    open_fields = {field.name for kind in (Request, Sequence) for field in fields(kind)} - FIXED
    assert table().keys() == open_fields


def test_every_field_is_written_by_those_that_the_table_names_and_by_no_other() -> None:
    expected = table()
    found: dict[str, set[str]] = defaultdict(set)
    folders = ("", "backends/", "loading/", "simulation/", "pictures/")
    for file in [file for folder in folders for file in PACKAGE.glob(f"{folder}*.py")]:
        module = file.relative_to(PACKAGE).with_suffix("").as_posix()
        for name in writes(ast.parse(file.read_text(encoding="utf-8"))) & expected.keys():
            found[name].add(module)
    assert found == expected


def test_what_counts_as_writing() -> None:
    code = "a.x = 1; b.y.append(2); c.z += 1; d.w[0] = 3; e.v.index(4); f.u, g.t = 5, 6; del h.s[0]"
    assert writes(ast.parse(code)) == {"x", "y", "z", "w", "u", "t", "s"}
    assert writes(ast.parse("setattr(seq, 'score', 1); print(seq.index)")) == {"score"}

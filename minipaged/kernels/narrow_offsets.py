"""Finds addresses that a compiled kernel computes from a product of 32 bits, which can overflow.

Block id times stride passes 2^31 in a cache of more than 2 billion elements, 4 GiB of bfloat16, and the
kernel then reads some other request's K without any error. No test on a small cache shows it. TTIR does, the
text of the compiler's first stage: every value has a type there, and every operation a source line.

A product is reported if it is narrower than 64 bits, a factor of it comes from an argument of the kernel (a
stride) or from memory (a block id), and it becomes part of an offset, even if it was widened on the way. So
`tl.program_id(0) * BLOCK` passes, and `(block * stride).to(tl.int64)` doesn't.

Left out: what overflows in 64 bits; products that are divided before they become an offset, as in
`(split * split_len) // block_size`. Chapter 11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# The operations whose result is large because an operand is; two names are ours. "phi" is a value that comes
# from several places in turn: what a loop carries, what a branch yields. "wide" is arith.muli of 64 bits.
_LINEAR = re.compile(
    r"phi|wide|arith\.(addi|subi|extsi|extui|trunci|index_cast|select)|tt\.(splat|broadcast|expand_dims|reshape|trans)"
)
_FROM_MEMORY = ("tt.load", "tt.atomic", "tt.descriptor_load")
_DEFINITION = re.compile(r"(?P<name>%\w+)(?::(?P<count>\d+))? = \"?(?P<op>[\w.]+)(?P<rest>.*)")
_VALUE = re.compile(r"%\w+(?:#\d+)?")


@dataclass
class _Value:
    op: str
    operands: list[str]
    line: str = ""


@dataclass
class _Region:
    """A loop or branch: the values that it carries or yields, place by place."""

    places: list[list[str]] = field(default_factory=list)
    condition: list[str] = field(default_factory=list)  # of a while loop: what its body gets


@dataclass
class _Function:
    """A kernel: its values by name, which of its arguments are numbers, and the offsets of its addresses."""

    values: dict[str, _Value] = field(default_factory=dict)
    arguments: set[str] = field(default_factory=set)
    offsets: list[str] = field(default_factory=list)

    def origins(self, names: list[str], passes: re.Pattern[str]) -> Iterator[tuple[str, _Value | None]]:
        """The values that `names` are made of, back through the operations that `passes` lets pass."""
        todo, seen = list(names), set[str]()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            value = self.values.get(name)
            yield name, value
            if value and passes.fullmatch(value.op):
                todo += value.operands


def narrow_offsets(ttir: str) -> list[str]:
    """The products of 32 bits that become part of an address, as "file:line"; empty if all is well."""
    function = _parse(ttir)
    narrow = [
        value.line
        for _, value in function.origins(function.offsets, _LINEAR)
        if value
        and value.op == "arith.muli"
        and any(_is_unbounded(factor, function) for factor in value.operands)
    ]
    locations = dict(re.findall(r"^(#loc\d*) = (loc\(.*\))$", ttir, re.MULTILINE))
    return sorted({_source_line(line, locations) for line in narrow})


def _is_unbounded(name: str, function: _Function) -> bool:
    """Whether a value depends on an argument or on memory, so that it can be any number."""
    return any(
        origin in function.arguments or (value is not None and value.op.startswith(_FROM_MEMORY))
        for origin, value in function.origins([name], re.compile(".*"))
    )


def _source_line(text: str, locations: dict[str, str]) -> str:
    """The first file and line that a location, or what it refers to, names; of nested calls the innermost."""
    if found := re.search(r'"([^"]+)":(\d+):\d+', text):
        return f"{found[1]}:{found[2]}"
    for reference in re.findall(r"#loc\d*", text):
        if (line := _source_line(locations[reference], locations)) != "unknown":
            return line
    return "unknown"


def _parse(ttir: str) -> _Function:
    """Read TTIR line by line. A brace at a line's end opens a region, one at a line's beginning closes it."""
    function, regions = _Function(), [_Region()]
    for line in map(str.strip, ttir.splitlines()):
        opened = _Region()
        if definition := _DEFINITION.match(line):
            opened = _define(function, definition, line)
        elif line.startswith("tt.func"):
            function.arguments |= set(re.findall(r"(%\w+): (?!!tt\.ptr)", line))
        elif line.startswith("scf.yield"):
            _bind(function, regions[-1].places, _VALUE.findall(line))
        elif line.startswith("scf.condition"):
            regions[-1].condition = _VALUE.findall(line)[1:]
            _bind(function, regions[-1].places, regions[-1].condition)
        elif line.startswith("^bb0") and regions[-1].condition:
            _bind(function, [[name] for name in re.findall(r"(%\w+):", line)], regions[-1].condition)
        if line.startswith("}") and not line.endswith("{"):
            regions.pop()
        elif line.endswith("{") and not line.startswith("}"):
            regions.append(opened)
    return function


def _define(function: _Function, definition: re.Match[str], line: str) -> _Region:
    """Note the value that a line defines; of a loop or branch, whose values come later, where they go to."""
    name, count, op, rest = definition.group("name", "count", "op", "rest")
    if not op.startswith("scf."):
        operands = _VALUE.findall(rest)
        is_wide = op == "arith.muli" and re.search(r"i64|index", rest.rpartition(" : ")[2])
        function.values[name] = _Value("wide" if is_wide else op, operands, line)
        if op == "tt.addptr":
            function.offsets.append(operands[1])
        return _Region()
    results = [f"{name}#{i}" for i in range(int(count))] if count else [name]
    starts = re.findall(r"(%\w+) = (%\w+(?:#\d+)?)", rest)  # of the loop variable, and of what is carried
    _bind(function, [[variable] for variable, _ in starts], [start for _, start in starts])
    carried = [variable for variable, _ in starts[op == "scf.for" :]]
    _bind(function, [[result] for result in results[: len(carried)]], carried)
    return _Region([[result, *carried[i : i + 1]] for i, result in enumerate(results)])


def _bind(function: _Function, places: list[list[str]], operands: list[str]) -> None:
    """Each value of a place may come from the operand of that place."""
    for names, operand in zip(places, operands, strict=False):
        for name in names:
            function.values.setdefault(name, _Value("phi", [])).operands.append(operand)

"""Makes what is made: exercises from the marked solutions, and executed notebooks from their sources.

    python tools/build.py                 every exercise and every notebook
    python tools/build.py ch00 ch03       those of some chapters
    python tools/build.py --check         build in memory and say what on disk differs
    python tools/build.py --measure ch13  take the notebooks' timings anew

solutions/chNN_name.py becomes exercises/chNN_name.py, and a second copy in exercises/.originals/, which
`minipaged reset` restores. An exercise that a reader has begun to solve is left alone.

notebooks/source/chNN_name.py becomes notebooks/chNN_name.ipynb. A rebuild gives the same bytes: cell ids come
from the cells' text, and nothing of the machine is recorded. A cell tagged "timing" measures time, so its
output is kept from the notebook on disk while its text stays.

Nothing here decides what must be seeded: a cell that draws random numbers without a seed shows up in --check.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
from collections import Counter
from difflib import unified_diff
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import gettempdir

import jupytext
import matplotlib.font_manager  # noqa: F401  (its first import ever prints a line, which no cell shall show)
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from minipaged.course.stubs import MarkerError, make_stub
from minipaged.course.tasks import exercise_file, graded_chapters, load_tasks, original_file

ROOT = Path(__file__).resolve().parent.parent
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "NO_COLOR": "1", "COLUMNS": "100"}
ENVIRONMENT["MINIPAGED_STATIC"] = "1"  # stills, not widgets: see minipaged/pictures/player.py
PNG_HEADER = b"\x89PNG\r\n\x1a\n"
CELL_TIMEOUT_S = 600
DIFF_LINES = 20


class BuildError(Exception):
    """A notebook that can't be built; the message names the notebook, the cell and the reason."""


def main(command_line: list[str]) -> int:
    """Build or check what the command line names; 1 if something is stale or can't be built."""
    arguments = _parser().parse_args(command_line)
    try:
        sources = []
        if arguments.exercises:
            refuse_unknown(arguments.chapters, {chapter.key for chapter in graded_chapters(arguments.root)})
        else:
            sources = find_sources(arguments.root / "notebooks", arguments.chapters)
        stale_exercises = update_exercises(arguments.root, arguments.chapters, arguments.check)
        changed = [path for path in sources if update(path, arguments.check, arguments.measure)]
    except (BuildError, MarkerError) as error:
        print(error, file=sys.stderr)
        return 1
    stale = sorted({path.stem.split("_")[0] for path in [*changed, *stale_exercises]})
    if arguments.check and stale:
        print(f"stale: {len(stale)} chapters. Rebuild: python tools/build.py {' '.join(stale)}")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Build exercises and notebooks from their sources.")
    parser.add_argument("chapters", nargs="*", metavar="chNN", help="chapters to build (default: all)")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a notebook is stale")
    parser.add_argument("--measure", action="store_true", help="run the timing cells anew")
    parser.add_argument("--exercises", action="store_true", help="only the exercises, no notebooks")
    parser.add_argument("--root", type=Path, default=ROOT, help="the course's folder")
    return parser


def refuse_unknown(chapters: list[str], known: set[str]) -> None:
    """`BuildError` if a chapter is named that isn't there."""
    if unknown := set(chapters) - known:
        raise BuildError(f"no chapter {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")


def find_sources(notebooks: Path, chapters: list[str]) -> list[Path]:
    """The sources of the chapters named ("ch03"), or of all, in the course's order."""
    sources = sorted((notebooks / "source").glob("ch*.py"))
    refuse_unknown(chapters, {path.stem.split("_")[0] for path in sources})
    return [path for path in sources if not chapters or path.stem.split("_")[0] in chapters]


def update_exercises(root: Path, keys: list[str], check: bool) -> list[Path]:
    """Write the exercises of the chapters named, or of all, unless `check`; returns the stale ones."""
    stale = []
    for chapter in graded_chapters(root):
        solution = root / "solutions" / f"{chapter.file_stem}.py"
        if (keys and chapter.key not in keys) or not solution.exists():
            continue
        stub = make_stub(solution.read_text(encoding="utf-8"), chapter.file_stem, load_tasks(root, chapter))
        if update_exercise(exercise_file(root, chapter), original_file(root, chapter), stub, check):
            stale.append(solution)
    return stale


def read(path: Path) -> str:
    """A file's text, or "" if it is missing; what a reader wrote need not be UTF-8."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def update_exercise(exercise: Path, original: Path, stub: str, check: bool) -> bool:
    """Write one exercise and its original unless `check`, and say whether it was (or is) stale."""
    before, now = (read(path) for path in (original, exercise))
    stale = before != stub or now != stub
    if stale and check:
        print(f"{exercise.name}: STALE\n" + "\n".join(first_differences(now, stub)))
    elif stale:
        original.parent.mkdir(parents=True, exist_ok=True)
        original.write_text(stub, encoding="utf-8", newline="\n")
        is_untouched = now in ("", before)
        if is_untouched:
            exercise.write_text(stub, encoding="utf-8", newline="\n")
        print(f"{exercise.name}: {'built' if is_untouched else 'left alone, since somebody works on it'}")
    return stale


def update(source: Path, check: bool, measure: bool) -> bool:
    """Build one notebook, write it unless `check`, and say whether the one on disk was (or is) stale."""
    target = source.parent.parent / f"{source.stem}.ipynb"
    on_disk = target.read_text(encoding="utf-8") if target.exists() else ""
    built = build(source, "" if measure else on_disk)
    stale = built != on_disk
    print(f"{source.stem}: {('STALE' if check else 'built') if stale else 'up to date'}", flush=True)
    if stale and check:
        print("\n".join(first_differences(on_disk, built)))
    elif stale:
        target.write_text(built, encoding="utf-8", newline="\n")
    return stale


def first_differences(on_disk: str, built: str) -> list[str]:
    """The first lines of a diff between two notebooks, cut short (a picture is one long line)."""
    lines = unified_diff(on_disk.splitlines(), built.splitlines(), "on disk", "rebuilt", n=1, lineterm="")
    return [line[:110] for line in islice(lines, DIFF_LINES)]


def build(source: Path, previous: str) -> str:
    """The executed notebook of one source, as text. Timings are kept from `previous`, an older build."""
    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    name_cells(notebook)
    execute(notebook, source)
    notebook.metadata = METADATA
    for cell in notebook.cells:
        normalise(cell, source.stem)
    if previous:
        keep_timings(notebook, nbformat.reads(previous, as_version=4))
    return nbformat.writes(notebook) + "\n"


def name_cells(notebook: NotebookNode) -> None:
    """Give each cell an id made from its text, so that a new cell changes no other cell's id."""
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        cell.id = f"{digest}-{seen[digest]}" if seen[digest] else digest
        seen[digest] += 1


def execute(notebook: NotebookNode, source: Path) -> None:
    """Run all cells, with this environment's Python, in the folder that JupyterLab would run them in."""
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        resources={"metadata": {"path": str(source.parent.parent)}},
        extra_arguments=["--log-level=ERROR"],  # it warns that a local kernel isn't encrypted
    )
    try:
        client.execute(env=os.environ | ENVIRONMENT)
    except CellExecutionError as error:
        raise BuildError(f"{source.stem}: a cell failed\n{error}") from None


def normalise(cell: NotebookNode, stem: str) -> None:
    """Keep of a cell what the next build will give again: its tags, and outputs that name no machine."""
    cell.metadata = {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
    for output in cell.get("outputs", []):
        if "image/png" in output.get("data", {}):
            output.data["image/png"] = strip_png(output.data["image/png"])
        for folder in (ROOT, Path.home(), Path(gettempdir())):
            if f"{folder}{os.sep}" in printed_text(output):
                raise BuildError(
                    f"{stem}: a cell's output names a folder of this machine, {folder}\n{cell.source}"
                )


def printed_text(output: NotebookNode) -> str:
    """What an output says in words: all but its pictures, whose base64 may hold any few letters by chance."""
    data = output.get("data", {})
    return str(output.get("text", "")) + str([data[kind] for kind in data if not kind.startswith("image/")])


def strip_png(encoded: str) -> str:
    """Drop a base64 PNG's text and time chunks, where matplotlib writes its version."""
    data, kept = base64.b64decode(encoded), PNG_HEADER
    position = len(PNG_HEADER)
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        end = (
            position + 12 + length
        )  # a chunk is its length, type, data and checksum; only the data is counted
        if data[position + 4 : position + 8] not in (b"tEXt", b"iTXt", b"zTXt", b"tIME"):
            kept += data[position:end]
        position = end
    return base64.b64encode(kept).decode()


def keep_timings(notebook: NotebookNode, previous: NotebookNode) -> None:
    """Take the outputs of the cells tagged "timing" from an older build that has the same cells."""
    measured = {cell.id: cell.outputs for cell in previous.cells if cell.cell_type == "code"}
    for cell in notebook.cells:
        if "timing" in cell.metadata.get("tags", []):
            cell.outputs = measured.get(cell.id, cell.outputs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

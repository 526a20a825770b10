"""The attacks of tests/grading/attacks.py at each level of isolation, as a table in docs/instructors.md.

    python tools/attack_table.py           try all, and write the table
    python tools/attack_table.py --check   only say whether the table has every attack

To be run as root on Linux: the level "user" is tried where Python can be read by others (in mounts of its
own), and "limits" as an ordinary user. Takes about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from minipaged.course.grading.sandbox import find_isolation
from minipaged.course.tasks import import_path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "instructors.md"
BEGIN, END = "<!-- attacks: tools/attack_table.py -->", "<!-- end of attacks -->"
COLUMNS = {
    "namespaces": "namespaces, as root",
    "ordinary": "namespaces, as an ordinary user",
    "user": "user",
    "limits": "limits",
}
NOBODY = 61234
# In mounts of its own, Python lies where everybody can read it; then comes another user, where one is named.
PLACE = """
set -e
case $1 in /root/*)
    mount --rbind "$1" /mnt
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir -p "$1"
    mount --rbind /mnt "$1";;
esac
user=$2; shift 2
if [ "$user" = 0 ]; then exec "$@"; fi
exec setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
"""


def attacks_of_the_suite() -> list[Any]:
    suite: Any = import_path(ROOT / "tests" / "grading" / "attacks.py")
    return [*suite.ATTACKS, *suite.KERNEL_ATTACKS]


def try_one(level: str, name: str) -> str:
    """The verdict on one attack, at one level, in this process."""
    suite: Any = import_path(ROOT / "tests" / "grading" / "attacks.py")
    isolation = find_isolation([ROOT], allow_weak=True, levels=[level])
    (attack,) = [attack for attack in attacks_of_the_suite() if attack.name == name]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        verdict: str = suite.attempt(attack, isolation, Path(folder)).verdict
    return verdict


def try_column(column: str) -> dict[str, str]:
    """Every attack in a process of its own, as the user that a column asks for."""
    user = NOBODY if column in ("ordinary", "limits") else 0
    level = "namespaces" if column == "ordinary" else column
    place = ["unshare", "--mount", "sh", "-c", PLACE, "sh", sys.base_prefix, str(user)]
    verdicts = {}
    for attack in attacks_of_the_suite():
        own = [sys.executable, __file__, "--level", level, "--attack", attack.name]
        done = subprocess.run([*place, *own], stdout=subprocess.PIPE, cwd="/", text=True)
        verdicts[attack.name] = done.stdout.strip() or "WORKED: it killed the grader"
        print(f"{column:<12}{attack.name:<66}{verdicts[attack.name]}", file=sys.stderr, flush=True)
    return verdicts


def cell(verdict: str, is_lost: bool) -> str:
    if verdict.startswith("WORKED"):
        return "**not promised**" if is_lost else f"**BROKEN** ({verdict})"
    return verdict


def table() -> str:
    columns = {column: try_column(column) for column in COLUMNS}
    lines = [
        f"Tried on {date.today()}, {platform.system()} {platform.release().split('-')[0]}, Python "
        f"{platform.python_version()}: {len(columns['namespaces'])} attacks."
    ]
    lines += ["", f"| attack | {' | '.join(COLUMNS.values())} |", f"|---|{'---|' * len(COLUMNS)}"]
    for attack in attacks_of_the_suite():
        row = [cell(columns[column][attack.name], column in attack.lost) for column in COLUMNS]
        lines.append(f"| {attack.name} | {' | '.join(row)} |")
    return "\n".join(lines)


def is_complete() -> bool:
    """Whether the page has a row for every attack, and no other."""
    part = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    named = re.findall(r"^\| (.+?) \| (?:held|no grade|\*\*)", part, re.MULTILINE)
    return named == [attack.name for attack in attacks_of_the_suite()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Try the attacks, and write what came of them into the docs."
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--level", help=argparse.SUPPRESS)  # how it calls itself, for one attack
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.level:
        print(try_one(options.level, options.attack))
    elif options.check:
        return 0 if is_complete() else 1
    else:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

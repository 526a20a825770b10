"""The process that judges one chapter of one submission: pytest, with a layer that lives in another process.

It has the tests and what they expect, runs in a sandbox of its own as a user without rights, and says what
came out to the process that has started it (`warden.py`), line by line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryFile


def main() -> None:
    """The order names the chapter, the seed, the socket, and what this process may use."""
    order = json.loads(sys.stdin.readline())
    root = Path(sys.path[0]).resolve()

    from minipaged.course.grader import ENVIRONMENT, Watch, run_here
    from minipaged.course.grading.limits import limit_this_process
    from minipaged.course.pytest_plugin import ISOLATED
    from minipaged.course.seed import VARIABLE
    from minipaged.course.tasks import find_chapter

    os.environ.update(ENVIRONMENT | {VARIABLE: str(order["seed"])})
    limit_this_process(order["rlimits"])
    chapter, fd = find_chapter(root, order["key"]), order["socket"]
    with os.fdopen(os.dup(fd), "w") as sink, TemporaryFile("w") as stack:
        watch = Watch(order["test_s"], stack, order["wall_factor"])
        code = run_here(root, chapter, f"{ISOLATED}{fd}", order["task"], sink, plugins=[watch])
        print(json.dumps({"done": int(code)}), file=sink)

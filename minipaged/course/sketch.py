"""A pool and a block table in a few lines of text, for feedback in a terminal. `draw.py` has the pictures."""

from __future__ import annotations

from collections.abc import Sequence


def sketch_pool(ref_counts: Sequence[int], free_queue: Sequence[int] | None = None) -> str:
    """Every block with its number of users, and the free queue from its head to its tail.

    >>> print(sketch_pool([1, 2, 0, 0], [3, 2]))
    block  0  1  2  3
    users  1  2  ·  ·
    free queue: 3 → 2
    """
    width = max(2, len(str(len(ref_counts) - 1)) + 1)
    ids = "".join(f"{block_id:>{width}}" for block_id in range(len(ref_counts)))
    users = "".join(f"{count or '·':>{width}}" for count in ref_counts)
    lines = [f"block {ids}", f"users {users}"]
    if free_queue is not None:
        lines.append("free queue: " + (" → ".join(map(str, free_queue)) or "empty"))
    return "\n".join(lines)


def sketch_table(name: str, block_ids: Sequence[int], num_tokens: int, block_size: int) -> str:
    """A block table, logical → physical, with written slots as #.

    >>> print(sketch_table("A", [5, 1], 6, 4))
    A: 0→5 [####]  1→1 [##··]  6 tokens
    """
    entries = []
    for index, block_id in enumerate(block_ids):
        filled = max(0, min(block_size, num_tokens - index * block_size))
        slots = (
            "#" * filled + "·" * (block_size - filled) if block_size <= 16 else f"{filled} of {block_size}"
        )
        entries.append(f"{index}→{block_id} [{slots}]")
    return "  ".join([f"{name}:", *entries]).replace(":  ", ": ", 1) + f"  {num_tokens} tokens"

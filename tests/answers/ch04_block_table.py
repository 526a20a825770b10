"""Wrong answers that chapter 4's grader must reject, and right ones that it must accept."""

from __future__ import annotations

from minipaged.course.answers import Answers

answers = Answers("ch04")

NOT_ROUNDED_UP = "the last block, not full, was not counted: rounded down, not up"
TOO_EARLY = "a block was taken before a token needs it: a block that is exactly full needs no other yet"
BY_FLOAT = "divided as floats, which are exact only up to 2**53"
NOT_LOOKED_UP = "the logical block was taken for the physical one: block_ids says where it lies"
WRONG_NUMBER = "the position was divided by the wrong number: blocks have block_size slots"
NOT_MULTIPLIED = "a block's id was taken for its first slot: block b begins at slot b * block_size"
SWAPPED = "block and offset were exchanged: // gives the block, % the offset"
ROOM_IS_NO_TOKEN = "a free slot of the last block was taken for a token"
FROM_THE_END = "a negative position was taken for one counted from the end"
HEAD_FIRST = "the blocks were freed head first: the last block must be freed first"
NOT_GIVEN_BACK = "blocks were not given back: a leak"
STILL_HELD = "the table still holds the blocks that it has given back"
KEPT = "blocks were taken before OutOfBlocks, and kept: check first, then change"
COUNTED = "the tokens were counted, although there was no room for them"
ROOM_FORGOTTEN = "the free slots of the last block were forgotten: blocks were taken for the new tokens alone"
NOT_A_USER = "the fork does not count as a user of the blocks: they will be freed under it"
ONE_LIST = "two tables share one list of block ids: when one grows, so does the other"
NONE_AND_ZERO = "fork(0) was taken for fork()"
TOO_MANY_SHARED = "a fork of some tokens shares blocks that none of them lies in"
NOT_COPIED = "the tail block was shared, and written without a copy"
FULL_COPIED = "a full block was copied, although nothing will be written into it"
LAST_OWNER_COPIES = "the tail was copied for its last owner, who may write in place"
COPY_FOR_NOTHING = "the tail was copied, although nothing was appended"
COPY_NOT_COUNTED = "the block for the copy was not counted"
NOT_GIVEN_UP = "the shared block was not given up after it had been copied"
EXCHANGED = "src and dst were exchanged: the shared block is copied into the new one"
NOTHING_GIVEN_UP = "the blocks of the tokens taken back are still held"

ROUND_UP = "return -(-num_tokens // block_size)"
SLOT = "return self.block_ids[position // self.block_size] * self.block_size + position % self.block_size"
OUTSIDE = """        if not 0 <= position < self.num_tokens:
            raise ValueError(f"position {position} is outside the table's {self.num_tokens} tokens")
"""
FREE = "        self.allocator.free_many(reversed(self.block_ids))\n"
CHECK = """        if needed > self.allocator.num_free:
            raise OutOfBlocks(needed, self.allocator.num_free, self.allocator.num_blocks)
"""
NEW_BLOCKS = "        new_blocks = blocks_for(end, self.block_size) - len(self.block_ids)\n"
TAKE = """        if new_blocks > 0:
            self.block_ids += self.allocator.allocate_many(new_blocks)
"""
COPY = """        # A copy takes a block too: where none is needed, there is nothing to copy, and nothing to ask.
        if needed > 0 and self._tail_is_shared():
            copy = self.copy_on_write.make_writable(self.block_ids, len(self.block_ids) - 1)
            copies = [copy] if copy else []
"""
ADOPT = """        child.adopt(
            self.copy_on_write.fork(self.block_ids[: blocks_for(num_tokens, self.block_size)]), num_tokens
        )
"""
FORK_CHECK = """        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot fork {num_tokens} tokens of a table that holds {self.num_tokens}")
"""
GIVE_UP = "        self.allocator.free_many(reversed(self.block_ids[num_kept:]))\n"

# -- task 1
answers.wrong(
    "rounds down", task=1, mistake=NOT_ROUNDED_UP, edits=[(ROUND_UP, "return num_tokens // block_size")]
)
answers.wrong(
    "one more than n // B",
    task=1,
    mistake=TOO_EARLY,
    edits=[(ROUND_UP, "return num_tokens // block_size + 1")],
)
answers.wrong(
    "math.ceil of a float", task=1, mistake=BY_FLOAT,
    edits=[(ROUND_UP, "import math\n\n    return math.ceil(num_tokens / block_size)")],
)
answers.wrong("rounds to the nearest", task=1, edits=[(ROUND_UP, "return round(num_tokens / block_size)")])
answers.wrong(
    "a number with a point", task=1, edits=[(ROUND_UP, "return -(-num_tokens // block_size) * 1.0")]
)
answers.wrong(
    "no tokens take a block", task=1, edits=[(ROUND_UP, "return max(1, -(-num_tokens // block_size))")]
)
answers.wrong(
    "the block size is 4, as in the example",
    task=1,
    edits=[(ROUND_UP, "return (num_tokens + 3) // block_size")],
)

# -- task 2
answers.wrong("the slot is the position", task=2, mistake=NOT_LOOKED_UP, edits=[(SLOT, "return position")])
answers.wrong(
    "divides by the number of blocks", task=2, mistake=WRONG_NUMBER,
    edits=[(SLOT, "return self.block_ids[position // len(self.block_ids)] * self.block_size + position % self.block_size")],
)
answers.wrong(
    "divides by the size of the pool", task=2, mistake=WRONG_NUMBER,
    edits=[(SLOT, "n = self.allocator.num_blocks\n        return self.block_ids[position // n] * self.block_size + position % n")],
)
answers.wrong(
    "does not multiply", task=2, mistake=NOT_MULTIPLIED,
    edits=[(SLOT, "return self.block_ids[position // self.block_size] + position % self.block_size")],
)
answers.wrong(
    "exchanges block and offset", task=2, mistake=SWAPPED,
    edits=[
        (OUTSIDE, OUTSIDE + "        block, offset = position % self.block_size, position // self.block_size\n"),
        (SLOT, "return self.block_ids[min(block, len(self.block_ids) - 1)] * self.block_size + offset"),
    ],
)
answers.wrong(
    "every slot of its blocks will do", task=2, mistake=ROOM_IS_NO_TOKEN,
    edits=[(OUTSIDE, OUTSIDE.replace("self.num_tokens:", "len(self.block_ids) * self.block_size:"))],
)
answers.wrong(
    "the position after the last token is in", task=2, mistake=ROOM_IS_NO_TOKEN,
    edits=[(OUTSIDE, OUTSIDE.replace("position < self", "position <= self"))],
)
answers.wrong(
    "negative positions count from the end", task=2, mistake=FROM_THE_END,
    edits=[(OUTSIDE, OUTSIDE.replace("not 0 <= position < self.num_tokens", "position >= self.num_tokens"))],
)
answers.wrong(
    "an IndexError instead of a ValueError", task=2,
    edits=[(OUTSIDE, OUTSIDE.replace("raise ValueError", "raise IndexError"))],
)

# -- task 3
answers.wrong(
    "head first",
    task=3,
    mistake=HEAD_FIRST,
    edits=[(FREE, FREE.replace("reversed(self.block_ids)", "self.block_ids"))],
)
answers.wrong(
    "in the order of the ids", task=3, mistake="freed in the order of the ids, not of the table",
    edits=[(FREE, FREE.replace("reversed(self.block_ids)", "sorted(self.block_ids, reverse=True)"))],
)
answers.wrong("only forgets: a leak", task=3, mistake=NOT_GIVEN_BACK, edits=[(FREE, "")])
answers.wrong(
    "keeps the list",
    task=3,
    mistake=STILL_HELD,
    edits=[("self.block_ids, self.num_tokens = [], 0", "self.num_tokens = 0")],
)
answers.wrong(
    "keeps the number of tokens", task=3, mistake=STILL_HELD,
    edits=[("self.block_ids, self.num_tokens = [], 0", "self.block_ids = []")],
)
answers.wrong(
    "frees only what is its own", task=3, mistake=NOT_GIVEN_BACK,
    edits=[(FREE, FREE.replace("reversed(self.block_ids)", "[b for b in reversed(self.block_ids) if self.allocator.ref_count(b) == 1]"))],
)
answers.wrong(
    "frees until nobody uses the block", task=3, mistake="everybody's use of the block was dropped, not only this table's",
    edits=[(FREE, "        for block in reversed(self.block_ids):\n            while self.allocator.ref_count(block):\n                self.allocator.free(block)\n")],
)

# -- task 4
answers.wrong(
    "one block ahead", task=4, mistake=TOO_EARLY,
    edits=[
        (NEW_BLOCKS, "        new_blocks = end // self.block_size + 1 - len(self.block_ids)\n"),
        ("grown = blocks_for(self.num_tokens + num_tokens, self.block_size) -", "grown = (self.num_tokens + num_tokens) // self.block_size + 1 -"),
    ],
)
answers.wrong(
    "forgets the room in the last block", task=4, mistake=ROOM_FORGOTTEN,
    edits=[
        (NEW_BLOCKS, "        new_blocks = blocks_for(num_tokens, self.block_size)\n"),
        ("grown = blocks_for(self.num_tokens + num_tokens, self.block_size) - len(self.block_ids)", "grown = blocks_for(num_tokens, self.block_size)"),
    ],
)
answers.wrong(
    "takes block after block, and checks on the way", task=4, mistake=KEPT,
    edits=[
        (CHECK, ""),
        (
            TAKE,
            "        for taken in range(new_blocks):\n            if self.allocator.num_free == 0:\n"
            "                raise OutOfBlocks(needed, new_blocks - taken + 1, self.allocator.num_blocks)\n"
            "            self.block_ids.append(self.allocator.allocate())\n",
        ),
    ],
)
answers.wrong(
    "gives blocks back after OutOfBlocks, in another order", task=4,
    edits=[
        (CHECK, ""),
        (
            TAKE,
            "        free, new = self.allocator.num_free, []\n        for _ in range(new_blocks):\n            if self.allocator.num_free == 0:\n"
            "                self.allocator.free_many(new[::-1])\n                raise OutOfBlocks(needed, free, self.allocator.num_blocks)\n"
            "            new.append(self.allocator.allocate())\n        self.block_ids += new\n",
        ),
    ],
)
answers.wrong(
    "counts the tokens first", task=4, mistake=COUNTED,
    edits=[
        ("        needed = self.blocks_needed(num_tokens)\n", "        needed = self.blocks_needed(num_tokens)\n        start = self.num_tokens\n        self.num_tokens += num_tokens\n"),
        ("        if needed > 0 and self._tail_is_shared():\n            copy =", "        self.num_tokens = start\n        if needed > 0 and self._tail_is_shared():\n            copy ="),
    ],
)
answers.wrong(
    "the last free block is out of reach", task=4, edits=[(CHECK, CHECK.replace("needed >", "needed >="))]
)
answers.wrong(
    "slots as if it lay in one piece", task=4, mistake=NOT_LOOKED_UP,
    edits=[("return Append([ids[p // size] * size + p % size for p in range(first, end)], copies)", "return Append(list(range(first, end)), copies)")],
)
answers.wrong(
    "the slots of all tokens", task=4,
    edits=[("for p in range(first, end)]", "for p in range(end)]")],
)
answers.wrong(
    "OutOfBlocks says how many tokens", task=4,
    edits=[(CHECK, CHECK.replace("OutOfBlocks(needed,", "OutOfBlocks(num_tokens,"))],
)
answers.wrong(
    "takes back a negative number of tokens", task=4,
    edits=[('        if num_tokens < 0:\n            raise ValueError(f"cannot append {num_tokens} tokens")\n', "")],
)
answers.wrong(
    "asking takes the blocks", task=4,
    edits=[("        return grown + (num_tokens > 0", "        if 0 < grown <= self.allocator.num_free:\n            self.allocator.allocate_many(grown)\n        return grown + (num_tokens > 0")],
)
answers.wrong(
    "all tables have one list", task=4, mistake=ONE_LIST,
    edits=[
        ("        self.block_ids: list[int] = []\n", ""),
        ("    def __init__(\n", "    block_ids: list[int] = []\n\n    def __init__(\n"),
        (TAKE, "        self.block_ids.extend(self.allocator.allocate_many(new_blocks))\n"),
    ],
)

# -- task 5
answers.wrong(
    "the child has the parent's list", task=5, mistake=ONE_LIST,
    edits=[(ADOPT, "        if num_tokens < self.num_tokens:\n    " + ADOPT.replace("\n    ", "\n        ").rstrip() + "\n            return child\n"
            "        self.copy_on_write.fork(self.block_ids)\n        child.block_ids, child.num_tokens = self.block_ids, num_tokens\n")],
)
answers.wrong(
    "counts nobody", task=5, mistake=NOT_A_USER,
    edits=[(ADOPT, "        child.adopt(self.block_ids[: blocks_for(num_tokens, self.block_size)], num_tokens)\n")],
)
answers.wrong(
    "fork(0) is fork()", task=5, mistake=NONE_AND_ZERO,
    edits=[("num_tokens = self.num_tokens if num_tokens is None else num_tokens", "num_tokens = num_tokens or self.num_tokens")],
)
answers.wrong(
    "shares all blocks, whatever was asked for", task=5, mistake=TOO_MANY_SHARED,
    edits=[(ADOPT, "        child.block_ids, child.num_tokens = self.copy_on_write.fork(self.block_ids), num_tokens\n")],
)
answers.wrong(
    "leaves the half-full block out", task=5, mistake=NOT_ROUNDED_UP,
    edits=[(ADOPT, "        blocks = self.block_ids[: num_tokens // self.block_size]\n        child.block_ids, child.num_tokens = self.copy_on_write.fork(blocks), num_tokens\n")],
)
answers.wrong(
    "takes blocks of its own, as if it copied", task=5,
    edits=[(ADOPT, "        child.adopt(self.allocator.allocate_many(blocks_for(num_tokens, self.block_size)), num_tokens)\n")],
)
answers.wrong(
    "forks what is not there",
    task=5,
    edits=[
        (FORK_CHECK, FORK_CHECK.replace("<= self.num_tokens:", "<= len(self.block_ids) * self.block_size:"))
    ],
)
answers.wrong(
    "forks a negative number",
    task=5,
    edits=[
        (FORK_CHECK, FORK_CHECK.replace("not 0 <= num_tokens <=", "num_tokens >").replace("> self", "> self"))
    ],
)
answers.wrong(
    "refuses after it has shared", task=5,
    edits=[(FORK_CHECK, "        self.copy_on_write.fork(self.block_ids[: max(0, blocks_for(num_tokens, self.block_size))])\n" + FORK_CHECK),
           (ADOPT, "        child.adopt(self.block_ids[: blocks_for(num_tokens, self.block_size)], num_tokens)\n")],
)

# -- task 6
TAIL = "return has_room and not self.copy_on_write.is_writable(self.block_ids[-1])"
answers.wrong("writes into the shared tail", task=6, mistake=NOT_COPIED, edits=[(TAIL, "return False")])
answers.wrong(
    "copies a full block", task=6, mistake=FULL_COPIED,
    edits=[("has_room = self.num_tokens % self.block_size != 0", "has_room = bool(self.block_ids)")],
)
answers.wrong(
    "copies when nothing is appended", task=6, mistake=COPY_FOR_NOTHING,
    edits=[
        (COPY, COPY.replace("needed > 0 and ", "")),
        ("return grown + (num_tokens > 0 and self._tail_is_shared())", "return grown + self._tail_is_shared()"),
    ],
)
answers.wrong(
    "does not count the block for the copy", task=6, mistake=COPY_NOT_COUNTED,
    edits=[("return grown + (num_tokens > 0 and self._tail_is_shared())", "return grown")],
)
answers.wrong(
    "copies before it checks", task=6, mistake=KEPT,
    edits=[(CHECK + "        copies = []\n" + COPY, "        copies = []\n" + COPY + CHECK)],
)
answers.wrong(
    "the shared block is not given up", task=6, mistake=NOT_GIVEN_UP,
    edits=[(COPY, """        if num_tokens > 0 and self._tail_is_shared():
            copies = [(self.block_ids[-1], self.allocator.allocate())]
            self.block_ids[-1] = copies[0][1]
""")],
)
answers.wrong(
    "src and dst exchanged", task=6, mistake=EXCHANGED,
    edits=[("copies = [copy] if copy else []", "copies = [copy[::-1]] if copy else []")],
)
answers.wrong(
    "the last owner copies too", task=6, mistake=LAST_OWNER_COPIES,
    edits=[
        ("        return child\n", "        self.was_forked = child.was_forked = True\n        return child\n"),
        (TAIL, "return has_room and getattr(self, 'was_forked', False)"),
        (COPY, """        if num_tokens > 0 and self._tail_is_shared():
            copies = [(self.block_ids[-1], self.allocator.allocate())]
            self.allocator.free(self.block_ids[-1])
            self.block_ids[-1] = copies[0][1]
            self.was_forked = False
"""),
    ],
)
answers.wrong(
    "only a child copies, and the parent writes in place", task=6, mistake=NOT_COPIED,
    edits=[
        ("        return child\n", "        child.is_child = True\n        return child\n"),
        (TAIL, "return has_room and getattr(self, 'is_child', False) and not self.copy_on_write.is_writable(self.block_ids[-1])"),
    ],
)
answers.wrong(
    "copies at the fork, not at the write", task=6,
    edits=[
        ("        return child\n", "        if child._tail_is_shared():\n            child.copy_on_write.make_writable(child.block_ids, len(child.block_ids) - 1)\n        return child\n"),
    ],
)
answers.wrong(
    "copies every shared block", task=6,
    edits=[(COPY, """        if num_tokens > 0 and self._tail_is_shared():
            made = [self.copy_on_write.make_writable(self.block_ids, index) for index in range(len(self.block_ids))]
            copies = [copy for copy in made if copy]
""")],
)
answers.wrong(
    "the copy is one of the new blocks, and not in the list of copies", task=6, mistake=NOT_COPIED,
    edits=[("copies = [copy] if copy else []", "copies = []")],
)
answers.wrong(
    "the new blocks come before the copy", task=6,
    edits=[
        (COPY, ""),
        ("        self.num_tokens = end\n", COPY.replace("len(self.block_ids) - 1", "first // self.block_size").replace("self._tail_is_shared()", "first % self.block_size and not self.copy_on_write.is_writable(self.block_ids[first // self.block_size])") + "        self.num_tokens = end\n"),
    ],
)

# -- task 7
answers.wrong(
    "takes tokens back and keeps the blocks",
    task=7,
    mistake=NOTHING_GIVEN_UP,
    edits=[(GIVE_UP, ""), ("        del self.block_ids[num_kept:]\n", "")],
)
answers.wrong(
    "gives up head first",
    task=7,
    mistake=HEAD_FIRST,
    edits=[(GIVE_UP, GIVE_UP.replace("reversed(self.block_ids[num_kept:])", "self.block_ids[num_kept:]"))],
)
answers.wrong(
    "gives the half-full block up", task=7, mistake=NOT_ROUNDED_UP,
    edits=[("num_kept = blocks_for(num_tokens, self.block_size)", "num_kept = num_tokens // self.block_size")],
)
answers.wrong(
    "keeps one block in reserve", task=7, mistake=TOO_EARLY,
    edits=[("num_kept = blocks_for(num_tokens, self.block_size)", "num_kept = num_tokens // self.block_size + 1")],
)
answers.wrong("forgets to forget", task=7, edits=[("        del self.block_ids[num_kept:]\n", "")])
answers.wrong(
    "truncate may grow", task=7,
    edits=[('        if not 0 <= num_tokens <= self.num_tokens:\n            raise ValueError(f"cannot keep', '        if num_tokens < 0:\n            raise ValueError(f"cannot keep')],
)
answers.wrong(
    "takes the number for how many to take back", task=7,
    edits=[("        num_kept = blocks_for", "        num_tokens = self.num_tokens - num_tokens\n        num_kept = blocks_for")],
)
answers.wrong(
    "whether the tail is shared is decided at the fork", task=7, mistake=NOT_COPIED,
    edits=[
        ("        return child\n", "        self.shares_tail = child.shares_tail = child.num_tokens % self.block_size != 0\n        return child\n"),
        ("return has_room and not", "return getattr(self, 'shares_tail', False) and has_room and not"),
    ],
)

answers.right(
    "slots counted one by one, and the copy by hand",
    source='''
from minipaged.block_table import Append
from minipaged.copy_on_write import CopyOnWrite
from minipaged.errors import OutOfBlocks


def blocks_for(num_tokens, block_size):
    full, rest = divmod(num_tokens, block_size)
    return full + 1 if rest else full


class BlockTable:
    """Appends token by token, to a plan; the plan is carried out once it is known to fit."""

    def __init__(self, allocator, block_size, copy_on_write=None):
        if block_size <= 0:
            raise ValueError(f"block_size {block_size}")
        self.allocator, self.block_size = allocator, block_size
        self.copy_on_write = CopyOnWrite(allocator) if copy_on_write is None else copy_on_write
        self.block_ids, self.num_tokens = [], 0

    def adopt(self, block_ids, num_tokens):
        if self.block_ids or blocks_for(num_tokens, self.block_size) != len(block_ids):
            raise ValueError(f"{len(block_ids)} blocks for {num_tokens} tokens")
        self.block_ids, self.num_tokens = [*block_ids], num_tokens

    def slot(self, position):
        if position < 0 or position >= self.num_tokens:
            raise ValueError(f"{position} is not one of {self.num_tokens} positions")
        index, offset = divmod(position, self.block_size)
        return range(self.block_ids[index] * self.block_size, 10**9)[offset]

    def free(self):
        while self.block_ids:
            self.allocator.free(self.block_ids.pop())
        self.num_tokens = 0

    def _copy_needed(self):
        return bool(self.num_tokens % self.block_size) and self.allocator.ref_count(self.block_ids[-1]) > 1

    def blocks_needed(self, num_tokens):
        starts = sum(p % self.block_size == 0 for p in range(self.num_tokens, self.num_tokens + num_tokens))
        return starts + 1 if num_tokens and self._copy_needed() else starts

    def append(self, num_tokens):
        if num_tokens < 0:
            raise ValueError(f"{num_tokens} tokens")
        need = self.blocks_needed(num_tokens)
        try:
            taken = self.allocator.allocate_many(need)
        except OutOfBlocks:
            raise OutOfBlocks(need, self.allocator.num_free, self.allocator.num_blocks) from None
        copies = []
        if num_tokens and self._copy_needed():
            old, new = self.block_ids[-1], taken.pop(0)
            self.allocator.free(old)
            self.block_ids[-1] = new
            copies.append((old, new))
        slots = []
        for _ in range(num_tokens):
            if self.num_tokens % self.block_size == 0:
                self.block_ids.append(taken.pop(0))
            self.num_tokens += 1
            slots.append(self.slot(self.num_tokens - 1))
        return Append(slots, copies)

    def fork(self, num_tokens=None):
        if num_tokens is None:
            num_tokens = self.num_tokens
        if num_tokens < 0 or num_tokens > self.num_tokens:
            raise ValueError(f"fork of {num_tokens} of {self.num_tokens}")
        child = BlockTable(self.allocator, self.block_size, self.copy_on_write)
        for position in range(0, num_tokens, self.block_size):
            child.block_ids.append(self.block_ids[position // self.block_size])
            self.allocator.share(child.block_ids[-1])
        child.num_tokens = num_tokens
        return child

    def truncate(self, num_tokens):
        if num_tokens < 0 or num_tokens > self.num_tokens:
            raise ValueError(f"truncate to {num_tokens} of {self.num_tokens}")
        while len(self.block_ids) * self.block_size - num_tokens >= self.block_size:
            self.allocator.free(self.block_ids.pop())
        self.num_tokens = num_tokens
''',
)
answers.right(
    "the slot of every token is kept; blocks follow from the slots",
    source="""
from minipaged.block_table import Append
from minipaged.copy_on_write import CopyOnWrite
from minipaged.errors import OutOfBlocks


def blocks_for(num_tokens, block_size):
    return (num_tokens + block_size - 1) // block_size


class BlockTable:
    def __init__(self, allocator, block_size, copy_on_write=None):
        if block_size < 1:
            raise ValueError("block_size must not be %d" % block_size)
        self.allocator = allocator
        self.block_size = block_size
        self.copy_on_write = copy_on_write or CopyOnWrite(allocator)
        self._slots = []

    @property
    def num_tokens(self):
        return len(self._slots)

    @property
    def block_ids(self):
        return [slot // self.block_size for slot in self._slots[:: self.block_size]]

    def _slots_of(self, block_ids, num_tokens):
        return [b * self.block_size + offset for b in block_ids for offset in range(self.block_size)][:num_tokens]

    def adopt(self, block_ids, num_tokens):
        if self._slots or len(block_ids) != blocks_for(num_tokens, self.block_size):
            raise ValueError((block_ids, num_tokens))
        self._slots = self._slots_of(block_ids, num_tokens)

    def slot(self, position):
        if position not in range(self.num_tokens):
            raise ValueError(f"no token at {position}, there are {self.num_tokens}")
        return self._slots[position]

    def free(self):
        self.truncate(0)

    def truncate(self, num_tokens):
        if num_tokens not in range(self.num_tokens + 1):
            raise ValueError(f"{num_tokens} of {self.num_tokens} tokens")
        given_up = self.block_ids[blocks_for(num_tokens, self.block_size) :]
        self._slots = self._slots[:num_tokens]
        self.allocator.free_many(given_up[::-1])

    def blocks_needed(self, num_tokens):
        before, after = (blocks_for(n, self.block_size) for n in (self.num_tokens, self.num_tokens + num_tokens))
        copy = 0
        if num_tokens and self.num_tokens % self.block_size:
            copy = int(self.allocator.ref_count(self.block_ids[-1]) != 1)
        return after - before + copy

    def append(self, num_tokens):
        if num_tokens < 0:
            raise ValueError(f"negative: {num_tokens}")
        if self.blocks_needed(num_tokens) > self.allocator.num_free:
            raise OutOfBlocks(self.blocks_needed(num_tokens), self.allocator.num_free, self.allocator.num_blocks)
        ids, first, copies = self.block_ids, self.num_tokens, []
        if num_tokens and first % self.block_size:
            copy = self.copy_on_write.make_writable(ids, len(ids) - 1)
            copies = [] if copy is None else [copy]
        while len(ids) * self.block_size < first + num_tokens:
            ids.append(self.allocator.allocate())
        self._slots = self._slots_of(ids, first + num_tokens)
        return Append(slots=self._slots[first:], copies=copies)

    def fork(self, num_tokens=None):
        n = self.num_tokens if num_tokens is None else num_tokens
        if not 0 <= n <= self.num_tokens:
            raise ValueError(f"fork({n}) of {self.num_tokens}")
        child = BlockTable(self.allocator, self.block_size, self.copy_on_write)
        child._slots = self._slots[:n]
        for block_id in child.block_ids:
            self.allocator.share(block_id)
        return child
""",
)
answers.right(
    "make_writable decides alone, and a subclass of Append is returned",
    edits=[
        (
            COPY,
            "        if num_tokens > 0 and self.num_tokens % self.block_size:\n"
            "            copies = [copy for copy in [self.copy_on_write.make_writable(self.block_ids, self.num_tokens // self.block_size)] if copy]\n",
        ),
        ("        return Append([ids", "        return type('Mine', (Append,), {})([ids"),
        (ROUND_UP, "return (num_tokens - 1) // block_size + 1"),
    ],
)
answers.right(
    "all slots from a generator, all blocks in one allocation, no helper",
    edits=[
        (TAIL, "raise RuntimeError('not used')"),
        (
            "return grown + (num_tokens > 0 and self._tail_is_shared())",
            "shared = len(self.block_ids) * self.block_size > self.num_tokens and self.allocator.ref_count(self.block_ids[-1]) > 1\n"
            "        return grown + 1 if num_tokens and shared else grown",
        ),
        (
            "        copies = []\n" + COPY,
            "        copies = []\n        if needed > blocks_for(self.num_tokens + num_tokens, self.block_size) - len(self.block_ids):\n"
            "            copies.append(self.copy_on_write.make_writable(self.block_ids, len(self.block_ids) - 1))\n",
        ),
        (SLOT, "block, offset = divmod(position, self.block_size)\n        return offset + self.block_size * self.block_ids[block]"),
        (GIVE_UP, "        for block in self.block_ids[num_kept:][::-1]:\n            self.allocator.free(block)\n"),
    ],
)

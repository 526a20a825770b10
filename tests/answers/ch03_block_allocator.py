"""Wrong answers that chapter 3's grader must reject, and right ones that it must accept."""

from __future__ import annotations

from minipaged.course.answers import Answers

answers = Answers("ch03")

KEPT_BACK = "block 0 was kept back: a pool of N blocks hands out N, there is no reserved one"
LOST = "blocks were taken before the check, and are lost: check first, then change"
TO_THE_HEAD = "a freed block went to the head of the queue, not to its tail"
STILL_USED = "a block that somebody still uses was put into the free queue"
NEVER_FREED = "a block without users never came back into the free queue: a leak"
PARTLY = "some blocks were freed before the error was found: check all of them, then change"
TWICE = "a block listed twice was checked once, and now it has been freed more often than it has users"

CHECK_LIST = """        for block_id, times in Counter(block_ids).items():
            if self.ref_count(block_id) < times:
                users = self._ref_counts[block_id]
                raise ValueError(f"double free: block {block_id} has {users} user(s), freed {times} time(s)")
"""
FREE_ALL = """        for block_id in block_ids:
            self._ref_counts[block_id] -= 1
"""
LAST_USER = """            if self._ref_counts[block_id] == 0:
                self._free_queue[block_id] = None
"""

answers.wrong(
    "block 0 is reserved, as a null block", task=1, mistake=KEPT_BACK,
    edits=[("fromkeys(range(num_blocks))", "fromkeys(range(1, num_blocks))")],
)
answers.wrong(
    "a pool of no blocks is made", task=1,
    edits=[("if num_blocks < 1:", "if num_blocks < 0:")],
)
answers.wrong(
    "block -1 is the last one", task=1, mistake="a negative id was taken for one counted from the end",
    edits=[("if not 0 <= block_id < self.num_blocks:", "if block_id >= self.num_blocks:")],
)
answers.wrong(
    "block N is known", task=1,
    edits=[
        ("if not 0 <= block_id < self.num_blocks:", "if not 0 <= block_id <= self.num_blocks:"),
        ("[0] * num_blocks\n", "[0] * (num_blocks + 1)\n"),
    ],
)
answers.wrong(
    "free_blocks gives its own list away", task=1,
    edits=[
        ("return list(self._free_queue)", "return self._list"),
        ("self._on_reuse = on_reuse\n", "self._on_reuse = on_reuse\n        self._list = list(range(num_blocks))\n"),
    ],
)
answers.wrong(
    "the queue belongs to the class, not to the pool", task=1,
    edits=[
        (
            "self._free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))",
            "BlockAllocator._free_queue = OrderedDict.fromkeys(range(num_blocks))",
        )
    ],
)
answers.wrong(
    "takes until there is none", task=2, mistake=LOST,
    edits=[
        (
            "        if n > self.num_free:\n            raise OutOfBlocks(needed=n, free=self.num_free, total=self.num_blocks)\n"
            "        return [self._take_head() for _ in range(n)]\n",
            "        free, taken = self.num_free, []\n        for _ in range(n):\n            if self.num_free == 0:\n"
            "                raise OutOfBlocks(needed=n, free=free, total=self.num_blocks)\n"
            "            taken.append(self._take_head())\n        return taken\n",
        )
    ],
)
answers.wrong("refuses the last block", task=2, edits=[("if n > self.num_free:", "if n >= self.num_free:")])
answers.wrong("takes from the tail", task=2, edits=[("popitem(last=False)", "popitem()")])
answers.wrong(
    "does not refuse a negative number", task=2,
    edits=[("        if n < 0:\n            raise ValueError(f\"cannot allocate {n} blocks\")\n", "")],
)
answers.wrong(
    "says what is free, not what was asked", task=2,
    edits=[("OutOfBlocks(needed=n, free=self.num_free,", "OutOfBlocks(needed=1, free=self.num_free,")],
)
answers.wrong(
    "never reports a reused block", task=2,
    edits=[("        if self._on_reuse is not None:\n            self._on_reuse(block_id)\n", "")],
)
answers.wrong(
    "calls on_reuse even if it is None", task=2,
    edits=[("        if self._on_reuse is not None:\n            self._on_reuse(block_id)\n", "        self._on_reuse(block_id)\n")],
)
answers.wrong(
    "gives the new block no user", task=2,
    edits=[("popitem(last=False)\n        self._ref_counts[block_id] = 1\n", "popitem(last=False)\n")],
)
answers.wrong(
    "freed blocks go to the head", task=3, mistake=TO_THE_HEAD,
    edits=[
        (
            "                self._free_queue[block_id] = None\n",
            "                self._free_queue[block_id] = None\n                self._free_queue.move_to_end(block_id, last=False)\n",
        )
    ],
)
answers.wrong(
    "free blocks are kept in id order", task=3,
    edits=[
        (
            "                self._free_queue[block_id] = None\n",
            "                self._free_queue = OrderedDict.fromkeys(sorted([*self._free_queue, block_id]))\n",
        )
    ],
)
answers.wrong(
    "a double free goes below zero", task=3,
    edits=[("            if self.ref_count(block_id) < times:\n", "            if self.ref_count(block_id) > 99:\n")],
)
answers.wrong(
    "forgets to put the block back: a leak", task=3, mistake=NEVER_FREED,
    edits=[(LAST_USER, "")],
)
answers.wrong(
    "one user's free is everybody's", task=4, mistake=STILL_USED,
    edits=[(LAST_USER, "            self._free_queue[block_id] = None\n")],
)
answers.wrong(
    "a shared block is never free again", task=4, mistake=NEVER_FREED,
    edits=[
        (LAST_USER, LAST_USER.replace("== 0:", "== 0 and block_id not in self._shared:")),
        ("self._on_reuse = on_reuse\n", "self._on_reuse = on_reuse\n        self._shared: set[int] = set()\n"),
        ("        self._ref_counts[block_id] += 1\n", "        self._ref_counts[block_id] += 1\n        self._shared.add(block_id)\n"),
    ],
)
answers.wrong(
    "shares a free block", task=4,
    edits=[("        if self.ref_count(block_id) == 0:\n            raise", "        if self.ref_count(block_id) < 0:\n            raise")],
)
answers.wrong(
    "revives a block in use", task=5,
    edits=[
        ("        if self.ref_count(block_id) != 0:\n", "        if self.ref_count(block_id) < 0:\n"),
        ("        del self._free_queue[block_id]", "        self._free_queue.pop(block_id, None)"),
    ],
)
answers.wrong(
    "revive leaves the block in the queue", task=5,
    edits=[("        del self._free_queue[block_id]  # O(1)", "        pass  # O(1)")],
)
answers.wrong(
    "revive reports the block as reused", task=5,
    mistake="revive reported the block to on_reuse, although its content is kept",
    edits=[
        (
            "before it\n        self._ref_counts[block_id] = 1\n",
            "before it\n        self._ref_counts[block_id] = 1\n        if self._on_reuse:\n            self._on_reuse(block_id)\n",
        )
    ],
)
answers.wrong(
    "revive takes the head", task=5, mistake="revive took the head of the queue, not the block that was asked for",
    edits=[("        del self._free_queue[block_id]  # O(1)", "        block_id = self._free_queue.popitem(last=False)[0]  # O(1)")],
)
answers.wrong(
    "frees until an entry is wrong", task=6, mistake=PARTLY,
    edits=[
        (CHECK_LIST, ""),
        (FREE_ALL, FREE_ALL.replace("            self", "            if self.ref_count(block_id) == 0:\n"
         "                raise ValueError(f'double free of {block_id}')\n            self", 1)),
    ],
)
answers.wrong(
    "checks each entry alone", task=6, mistake=TWICE,
    edits=[("if self.ref_count(block_id) < times:", "if self.ref_count(block_id) < 1:")],
)
answers.wrong(
    "a list is a set", task=6,
    edits=[("        block_ids = list(block_ids)", "        block_ids = sorted(set(block_ids))")],
)
answers.wrong(
    "goes through an iterator twice", task=6,
    mistake="the blocks were gone through twice, and an iterator is empty the second time",
    edits=[("        block_ids = list(block_ids)  # it is gone through twice, and an iterator lasts for once\n", "")],
)
answers.wrong(
    "empties the caller's list", task=6, mistake="the list that was passed in was emptied: it is the caller's",
    edits=[("        for block_id in block_ids:\n            self._ref_counts[block_id] -= 1\n",
            "        while block_ids:\n            block_id = block_ids.pop(0)\n            self._ref_counts[block_id] -= 1\n"),
           ("        block_ids = list(block_ids)  # it", "        block_ids = block_ids if isinstance(block_ids, list) else list(block_ids)  # it")],
)
answers.wrong(
    "sorts the caller's list", task=6,
    edits=[("        for block_id in block_ids:\n            self._ref_counts[block_id] -= 1\n",
            "        given = list(block_ids)\n        block_ids.sort()\n        for block_id in given:\n"
            "            self._ref_counts[block_id] -= 1\n"),
           ("        block_ids = list(block_ids)  # it", "        block_ids = block_ids if isinstance(block_ids, list) else list(block_ids)  # it")],
)
answers.wrong(
    "does not say which block", task=6,
    edits=[('f"double free: block {block_id} has {users} user(s), freed {times} time(s)"', '"a double free"')],
)
answers.wrong(
    "reports a freed block as reused", task=4,
    edits=[(LAST_USER, LAST_USER + "                if self._on_reuse:\n                    self._on_reuse(block_id)\n")],
)
answers.wrong(
    "reports a shared block as reused", task=4,
    edits=[("        self._ref_counts[block_id] += 1\n", "        self._ref_counts[block_id] += 1\n        if self._on_reuse:\n            self._on_reuse(block_id)\n")],
)
answers.wrong(
    "a counter of free blocks that revive forgets", task=6,
    edits=[
        ("        return len(self._free_queue)\n", "        return self._num_free\n"),
        ("self._on_reuse = on_reuse\n", "self._on_reuse = on_reuse\n        self._num_free = num_blocks\n"),
        ("        if n > self.num_free:\n            raise OutOfBlocks(needed=n, free=self.num_free,", "        if n > len(self._free_queue):\n            raise OutOfBlocks(needed=n, free=self.num_free,"),
        ("popitem(last=False)\n", "popitem(last=False)\n        self._num_free -= 1\n"),
        ("                self._free_queue[block_id] = None\n", "                self._free_queue[block_id] = None\n                self._num_free += 1\n"),
    ],
)
answers.wrong(
    "frees in reverse", task=6,
    edits=[("        for block_id in block_ids:\n            self._ref", "        for block_id in reversed(block_ids):\n            self._ref")],
)
answers.wrong(
    "the linked queue forgets one of two neighbours", task=7,
    edits=[("self._after[left], self._before[right] = right, left", "self._after[left] = right")],
)
answers.wrong(
    "the linked queue removes what is not there", task=7,
    edits=[("        if not 0 <= block_id < self._end or not self._is_in[block_id]:\n", "        if False:\n")],
)

answers.right(
    "a deque, with revive by rebuilding",
    source="""
from collections import deque

from minipaged.errors import OutOfBlocks


class BlockAllocator:
    def __init__(self, num_blocks, on_reuse=None):
        if num_blocks <= 0:
            raise ValueError(f"num_blocks is {num_blocks}")
        self.num_blocks, self.on_reuse = num_blocks, on_reuse or (lambda block: None)
        self.users, self.queue = {block: 0 for block in range(num_blocks)}, deque(range(num_blocks))

    @property
    def num_free(self):
        return sum(count == 0 for count in self.users.values())

    def free_blocks(self):
        return [*self.queue]

    def ref_count(self, block_id):
        if block_id not in self.users:
            raise ValueError(f"{block_id} is not one of 0..{self.num_blocks - 1}")
        return self.users[block_id]

    def allocate(self):
        (block,) = self.allocate_many(1)
        return block

    def allocate_many(self, n):
        if n < 0:
            raise ValueError(n)
        if len(self.queue) < n:
            raise OutOfBlocks(n, len(self.queue), self.num_blocks)
        blocks = []
        while len(blocks) < n:
            blocks.append(self.queue.popleft())
            self.users[blocks[-1]] = 1
            self.on_reuse(blocks[-1])
        return blocks

    def share(self, block_id):
        if not self.ref_count(block_id):
            raise ValueError(block_id)
        self.users[block_id] += 1

    def revive(self, block_id):
        if self.ref_count(block_id):
            raise ValueError(block_id)
        self.queue = deque(block for block in self.queue if block != block_id)
        self.users[block_id] = 1

    def free(self, block_id):
        if not self.ref_count(block_id):
            raise ValueError(f"block {block_id} is free")
        self.users[block_id] -= 1
        if not self.users[block_id]:
            self.queue.append(block_id)

    def free_many(self, block_ids):
        users, queue = dict(self.users), self.queue.copy()
        try:
            for block_id in block_ids:
                self.free(block_id)
        except ValueError:
            self.users, self.queue = users, queue
            raise


class LinkedFreeQueue:
    def __init__(self, num_blocks):
        self.next = [block + 1 for block in range(num_blocks)]
        self.prev = [block - 1 for block in range(num_blocks)]
        self.next[-1] = None
        self.prev[0] = None
        self.head, self.tail, self.count, self.member = 0, num_blocks - 1, num_blocks, [True] * num_blocks

    def __len__(self):
        return self.count

    def popleft(self):
        if self.head is None:
            raise IndexError("empty")
        block = self.head
        self.remove(block)
        return block

    def append(self, block_id):
        if self.member[block_id]:
            raise ValueError(block_id)
        self.member[block_id], self.count = True, self.count + 1
        self.prev[block_id], self.next[block_id] = self.tail, None
        if self.tail is None:
            self.head = block_id
        else:
            self.next[self.tail] = block_id
        self.tail = block_id

    def remove(self, block_id):
        if block_id not in range(len(self.member)) or not self.member[block_id]:
            raise ValueError(block_id)
        self.member[block_id], self.count = False, self.count - 1
        before, after = self.prev[block_id], self.next[block_id]
        if before is None:
            self.head = after
        else:
            self.next[before] = after
        if after is None:
            self.tail = before
        else:
            self.prev[after] = before

    def blocks(self):
        blocks, block = [], self.head
        while block is not None:
            blocks.append(block)
            block = self.next[block]
        return blocks
""",
)
answers.right(
    "a time stamp per block and a heap",
    source='''
import heapq

from minipaged.errors import OutOfBlocks


class BlockAllocator:
    """A free block has a stamp, the time at which it became free; the heap may hold stale entries."""

    def __init__(self, num_blocks, on_reuse=None):
        if num_blocks < 1:
            raise ValueError("too few blocks: %d" % num_blocks)
        self.num_blocks, self.on_reuse, self.clock = num_blocks, on_reuse, num_blocks
        self.counts = [0] * num_blocks
        self.stamps = dict(zip(range(num_blocks), range(num_blocks)))
        self.heap = [(block, block) for block in range(num_blocks)]

    num_free = property(lambda self: len(self.stamps))

    def free_blocks(self):
        return sorted(self.stamps, key=self.stamps.get)

    def ref_count(self, block_id):
        if block_id < 0 or block_id >= self.num_blocks:
            raise ValueError(f"block {block_id} of a pool whose last is {self.num_blocks - 1}")
        return self.counts[block_id]

    def allocate(self):
        return self.allocate_many(1)[0]

    def allocate_many(self, n):
        if n < 0:
            raise ValueError(f"{n} blocks")
        if n > self.num_free:
            raise OutOfBlocks(n, self.num_free, self.num_blocks)
        taken = []
        while len(taken) < n:
            stamp, block = heapq.heappop(self.heap)
            if self.stamps.get(block) == stamp:
                del self.stamps[block]
                self.counts[block] = 1
                taken.append(block)
        for block in taken:
            if self.on_reuse is not None:
                self.on_reuse(block)
        return taken

    def share(self, block_id):
        if self.ref_count(block_id) < 1:
            raise ValueError(f"block {block_id} is free")
        self.counts[block_id] += 1

    def revive(self, block_id):
        if self.ref_count(block_id) > 0:
            raise ValueError(f"block {block_id} is in use")
        del self.stamps[block_id]
        self.counts[block_id] = 1

    def free(self, block_id):
        self.free_many((block_id,))

    def free_many(self, block_ids):
        block_ids, left = [*block_ids], {}
        for block in block_ids:
            left[block] = left.get(block, self.ref_count(block)) - 1
            if left[block] < 0:
                raise ValueError(f"block {block} is freed too often")
        for block in block_ids:
            self.counts[block] -= 1
            if self.counts[block] == 0:
                self.stamps[block] = self.clock
                heapq.heappush(self.heap, (self.clock, block))
                self.clock += 1


class LinkedFreeQueue:
    def __init__(self, num_blocks):
        self.links = {}
        self.ends = [None, None]
        for block in range(num_blocks):
            self.append(block)

    def __len__(self):
        return len(self.links)

    def popleft(self):
        if not self.links:
            raise IndexError("pop from an empty queue")
        head = self.ends[0]
        self.remove(head)
        return head

    def append(self, block_id):
        if block_id in self.links:
            raise ValueError(f"{block_id} is here")
        tail = self.ends[1]
        self.links[block_id] = [tail, None]
        self.ends[1] = block_id
        if tail is None:
            self.ends[0] = block_id
        else:
            self.links[tail][1] = block_id

    def remove(self, block_id):
        if block_id not in self.links:
            raise ValueError(f"{block_id} is not here")
        before, after = self.links.pop(block_id)
        if before is None:
            self.ends[0] = after
        else:
            self.links[before][1] = after
        if after is None:
            self.ends[1] = before
        else:
            self.links[after][0] = before

    def blocks(self):
        found, block = [], self.ends[0]
        while block is not None:
            found.append(block)
            block = self.links[block][1]
        return found
''',
)
answers.right(
    "errors of more special kinds, and tuples taken for lists nowhere",
    edits=[
        ("raise ValueError(f\"block {block_id} is free and cannot be shared\")",
         "raise type('NotInUse', (ValueError,), {})(f'{block_id} is not in use')"),
        ("        return list(self._free_queue)\n", "        return [*self._free_queue.keys()]\n"),
        ("        self.free_many([block_id])\n",
         "        if self.ref_count(block_id) == 0:\n            raise ValueError(f'block {block_id} is free')\n"
         "        self._ref_counts[block_id] -= 1\n        if self._ref_counts[block_id] == 0:\n"
         "            self._free_queue[block_id] = None\n"),
    ],
)

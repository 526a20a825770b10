"""Wrong answers that chapter 6's grader must reject, and right ones that it must accept."""

from __future__ import annotations

from minipaged.course.answers import Answers

answers = Answers("ch06")

NOT_A_USER = "the fork does not count as a user of its blocks: they will be freed under it"
ONE_LIST = "parent and child have one list: when one of them gets a copy, so does the other"
COPIED_AT_FORK = "blocks were allocated for the fork: it shares its parent's, and copies nothing"
SHARED_WRITABLE = "a shared block was called writable: its other owners would read what one of them writes"
ALONE_NOT_WRITABLE = "a block was called not writable although only the caller uses it"
ONCE_SHARED = "a block that was shared once is taken for shared for ever"
NOT_COPIED = "the block was shared, and would be written without a copy"
LAST_OWNER_COPIES = "the block was copied for its last owner, who may write in place"
EXCHANGED = "src and dst were exchanged: the shared block is copied into the fresh one"
NOT_GIVEN_UP = "the shared block was not given up: it has a user who does not have it any more"
NOT_IN_LIST = "the fresh block was not put into the list: its owner would write into the shared one"
WRONG_PLACE = "another block than block_ids[index] was exchanged"
GIVEN_UP_FIRST = "the shared block was given up before a fresh one was there: check first, then change"
TAIL_COUNTED = "the half-full block was counted as shared, although every sample has written into it"
ORIGINAL_COUNTED = "all n were counted as saved: one of them is needed"
OUTPUT_COUNTED = "blocks with output in them were counted as shared"
FORKED_FORGOTTEN = "as long as nobody has written, the half-full block is shared too"
ROUNDED_LATE = "the tokens of all samples were divided together: each has a half-full block of its own"
IN_TOKENS = "tokens were counted, not blocks"
ONE_BY_ONE = "some writers had moved before the blocks ran out: count all copies first"
LAST_COUNTED = "a copy was counted for a block's last owner, who writes in place"
APPENDED_FIRST = "the others wrote before those that stop had freed their blocks"
LEADER_STOPS = "a live branch was taken for the best one: it leads, but it may still fall behind"
GOES_ON = "a branch goes on that can't become better than the best one"
NOT_FREED = "a branch that stopped still holds its blocks"

SHARE = "            self.allocator.share(block_id)\n"
SHARE_ALL = "        for block_id in block_ids:\n" + SHARE
NEW_LIST = "        return list(block_ids)\n"
ALONE = "return self.allocator.ref_count(block_id) == 1"
WRITABLE = """        if self.is_writable(src):
            return None
"""
TAKE = "        dst = self.allocator.allocate()\n"
GIVE_UP = "        self.allocator.free(src)\n"
EXCHANGE = "        block_ids[index] = dst\n"
SAVED = "return (n - 1) * (full + is_tail_shared)"
NEEDED = "sum(min(w, allocator.ref_count(block_id) - 1) for block_id, w in num_writers.items())"
STEP_CHECK = """    if needed > allocator.num_free:
        raise OutOfBlocks(needed, allocator.num_free, allocator.num_blocks)
"""
COPIES = "copies = [cow.make_writable(block_ids, index) for block_ids, index in writers]"
HOPELESS = "is_hopeless = self.best is not None and self._scores[branch] <= self.best[1]"
APPEND = "return [copy for branch in self.live() for copy in self._tables[branch].append(1).copies]"
BETTER = "if self.best is None or self._scores[branch] > self.best[1]:"

# -- task 1
answers.wrong("counts nobody", task=1, mistake=NOT_A_USER, edits=[(SHARE_ALL, "")])
answers.wrong(
    "returns the parent's list", task=1, mistake=ONE_LIST, edits=[(NEW_LIST, "        return block_ids\n")]
)
answers.wrong(
    "takes blocks of its own", task=1, mistake=COPIED_AT_FORK,
    edits=[(SHARE_ALL, ""), (NEW_LIST, "        return self.allocator.allocate_many(len(block_ids))\n")],
)
answers.wrong(
    "copies the last block at once, in case somebody writes", task=1, mistake=COPIED_AT_FORK,
    edits=[(SHARE_ALL + "        # Not", "        child = list(block_ids)\n        for block_id in block_ids[:-1]:\n" + SHARE + "        if child:\n            child[-1] = self.allocator.allocate()\n        return child\n        # Not")],
)
answers.wrong(
    "shares the last block only", task=1, mistake="only the last block got a user more",
    edits=[(SHARE_ALL, SHARE_ALL.replace("in block_ids:", "in block_ids[-1:]:"))],
)
answers.wrong(
    "shares a block only once", task=1, mistake="a block that is shared already got no user more",
    edits=[(SHARE_ALL, SHARE_ALL.replace("    self.allocator.share", "    if self.allocator.ref_count(block_id) == 1:\n                self.allocator.share"))],
)
answers.wrong(
    "a user for the parent, and one for the child", task=1, mistake="users were counted twice",
    edits=[(SHARE_ALL, SHARE_ALL + SHARE)],
)
answers.wrong(
    "sorts the blocks", task=1, mistake="the order of the blocks was lost",
    edits=[(NEW_LIST, "        return sorted(block_ids)\n")],
)
answers.wrong("returns nothing", task=1, mistake="the child's list was not returned", edits=[(NEW_LIST, "")])
answers.wrong("returns a tuple", task=1, edits=[(NEW_LIST, "        return tuple(block_ids)\n")])

# -- task 2
answers.wrong(
    "whatever is in use may be written", task=2, mistake=SHARED_WRITABLE, edits=[(ALONE, ALONE.replace("== 1", ">= 1"))]
)
answers.wrong(
    "two owners are few enough", task=2, mistake=SHARED_WRITABLE, edits=[(ALONE, ALONE.replace("== 1", "<= 2"))]
)
answers.wrong(
    "the caller is not counted",
    task=2,
    mistake=ALONE_NOT_WRITABLE,
    edits=[(ALONE, ALONE.replace("== 1", "== 0"))],
)
answers.wrong("the other way round", task=2, edits=[(ALONE, ALONE.replace("== 1", "> 1"))])
answers.wrong("returns the count", task=2, edits=[(ALONE, ALONE.replace(" == 1", ""))])
answers.wrong(
    "remembers that it was shared", task=2, mistake=ONCE_SHARED,
    edits=[
        ("        self.allocator = allocator\n", "        self.allocator = allocator\n        self.seen_shared = set()\n"),
        (ALONE, "if self.allocator.ref_count(block_id) > 1:\n            self.seen_shared.add(block_id)\n        return block_id not in self.seen_shared"),
    ],
)
answers.wrong(
    "odd counts are mine", task=2, mistake=SHARED_WRITABLE, edits=[(ALONE, ALONE.replace("== 1", "% 2 == 1"))]
)

# -- task 3
answers.wrong("n times", task=3, mistake=ORIGINAL_COUNTED, edits=[(SAVED, SAVED.replace("(n - 1)", "n"))])
answers.wrong(
    "rounds up", task=3, mistake=TAIL_COUNTED,
    edits=[("output_len == 0 and prompt_len % block_size > 0", "prompt_len % block_size > 0")],
)
answers.wrong(
    "rounds down, always", task=3, mistake=FORKED_FORGOTTEN,
    edits=[("output_len == 0 and prompt_len % block_size > 0", "False")],
)
answers.wrong(
    "one block more whenever nothing is written", task=3,
    edits=[("output_len == 0 and prompt_len % block_size > 0", "output_len == 0")],
)
answers.wrong(
    "counts all full blocks, of the output too", task=3, mistake=OUTPUT_COUNTED,
    edits=[("full = prompt_len // block_size", "full = (prompt_len + output_len) // block_size")],
)
answers.wrong(
    "counts tokens",
    task=3,
    mistake=IN_TOKENS,
    edits=[("full = prompt_len // block_size", "full = prompt_len")],
)
answers.wrong(
    "divides as floats", task=3, edits=[("full = prompt_len // block_size", "full = prompt_len / block_size")]
)
answers.wrong(
    "a float that is whole", task=3, edits=[(SAVED, "return float((n - 1) * (full + is_tail_shared))")]
)
answers.wrong(
    "multiplies, then divides", task=3, mistake=ROUNDED_LATE,
    edits=[(SAVED, "return (n - 1) * prompt_len // block_size")],
)

# -- task 4
answers.wrong(
    "never copies",
    task=4,
    mistake=NOT_COPIED,
    edits=[(WRITABLE, "        if True:\n            return None\n")],
)
answers.wrong("always copies", task=4, mistake=LAST_OWNER_COPIES, edits=[(WRITABLE, "")])
answers.wrong(
    "gives up, then takes", task=4, mistake=GIVEN_UP_FIRST, edits=[(TAKE, GIVE_UP + TAKE), ("dst.\n" + GIVE_UP, "dst.\n")]
)
answers.wrong("does not give up", task=4, mistake=NOT_GIVEN_UP, edits=[(GIVE_UP, "")])
answers.wrong(
    "changes a list of its own", task=4, mistake=NOT_IN_LIST, edits=[(EXCHANGE, "        block_ids = [*block_ids[:index], dst, *block_ids[index + 1:]]\n")]
)
answers.wrong(
    "returns dst, src",
    task=4,
    mistake=EXCHANGED,
    edits=[("        return src, dst\n", "        return dst, src\n")],
)
answers.wrong(
    "returns a list",
    task=4,
    mistake="a list, not a tuple",
    edits=[("        return src, dst\n", "        return [src, dst]\n")],
)
answers.wrong(
    "returns the fresh block alone", task=4, mistake="only the fresh block was returned, not the copy (src, dst)",
    edits=[("        return src, dst\n", "        return dst\n")],
)
answers.wrong(
    "always the last block", task=4, mistake=WRONG_PLACE,
    edits=[("        src = block_ids[index]\n", "        index = len(block_ids) - 1\n        src = block_ids[index]\n")],
)
answers.wrong(
    "index taken for a block's id", task=4, mistake=WRONG_PLACE,
    edits=[("        src = block_ids[index]\n", "        src, index = index, 0\n")],
)
answers.wrong(
    "appends the fresh block", task=4, mistake="the fresh block was appended, not put in its place",
    edits=[(EXCHANGE, "        block_ids.append(dst)\n")],
)
answers.wrong(
    "frees it for everybody", task=4, mistake="the shared block lost all its users",
    edits=[(GIVE_UP, "        while self.allocator.ref_count(src):\n            self.allocator.free(src)\n")],
)
answers.wrong(
    "a copy onto itself for the last owner", task=4, mistake="a block is copied onto itself: there is nothing to copy",
    edits=[(WRITABLE, WRITABLE.replace("return None", "return src, src"))],
)
answers.wrong(
    "tests the count, and gives up after an error", task=4,
    edits=[(TAKE, "        if self.allocator.num_free == 0:\n            return None\n" + TAKE)],
)
answers.wrong(
    "only the child copies: whoever was forked", task=4, mistake=NOT_COPIED,
    edits=[(WRITABLE, "        if self.is_writable(src) or (index == 1 and getattr(self, 'first', True)):\n            self.first = False\n            return None\n")],
)
answers.wrong(
    "exchanges all shared blocks of the list", task=4,
    edits=[(EXCHANGE, EXCHANGE + "        for other, block in enumerate(block_ids):\n            if other != index and not self.is_writable(block) and self.allocator.num_free:\n                self.allocator.free(block)\n                block_ids[other] = self.allocator.allocate()\n")],
)

# -- task 5
answers.wrong("one after the other, unchecked", task=5, mistake=ONE_BY_ONE, edits=[(STEP_CHECK, "")])
answers.wrong(
    "a block for every writer", task=5, mistake=LAST_COUNTED, edits=[(NEEDED, "sum(not cow.is_writable(block_ids[index]) for block_ids, index in writers)")]
)
answers.wrong(
    "every writer's block has one who stays", task=5, mistake=ONE_BY_ONE, edits=[(NEEDED, "sum(w - 1 for w in num_writers.values())")]
)
answers.wrong(
    "as many as there are owners", task=5,
    edits=[(NEEDED, "sum(allocator.ref_count(block_id) - 1 for block_id in num_writers)")],
)
answers.wrong(
    "one copy for each block that is shared", task=5, mistake=ONE_BY_ONE,
    edits=[(NEEDED, "sum(allocator.ref_count(block_id) > 1 for block_id in num_writers)")],
)
answers.wrong(
    "None among the copies",
    task=5,
    edits=[("return [copy for copy in copies if copy is not None]", "return copies")],
)
answers.wrong(
    "in the order of the blocks", task=5,
    edits=[("return [copy for copy in copies if copy is not None]", "return sorted(copy for copy in copies if copy is not None)"),
           (COPIES, "copies = [cow.make_writable(block_ids, index) for block_ids, index in sorted(writers, key=lambda one: (one[1], one[0]))]")],
)
answers.wrong(
    "the last free block is out of reach",
    task=5,
    edits=[(STEP_CHECK, STEP_CHECK.replace("needed >", "needed >="))],
)
answers.wrong(
    "everybody copies, and the old block is free", task=5,
    edits=[(COPIES, """copies = []
    for block_ids, index in writers:
        src = block_ids[index]
        if num_writers[src] > 1 or not cow.is_writable(src):
            block_ids[index] = allocator.allocate()
            allocator.free(src)
            copies.append((src, block_ids[index]))""")],
)

# -- task 6
answers.wrong(
    "appends first", task=6, mistake=APPENDED_FIRST,
    edits=[
        ("        for branch in self.live():\n            is_hopeless", "        copies = [copy for branch in self.live() if self.best is None or self._scores[branch] > self.best[1] for copy in self._tables[branch].append(1).copies]\n        for branch in self.live():\n            is_hopeless"),
        (APPEND, "return copies"),
    ],
)
answers.wrong(
    "the leader is the best",
    task=6,
    mistake=LEADER_STOPS,
    edits=[("for branch in sorted(ended):", "for branch in self.live():")],
)
answers.wrong(
    "equal goes on",
    task=6,
    edits=[
        (HOPELESS, HOPELESS.replace("<=", "<").replace("is_hopeless = ", "is_hopeless = branch in ended or "))
    ],
    mistake=GOES_ON,
)
answers.wrong(
    "only those that end stop", task=6, mistake=GOES_ON, edits=[(HOPELESS, "is_hopeless = branch in ended")]
)
answers.wrong(
    "does not free",
    task=6,
    mistake=NOT_FREED,
    edits=[("self._tables.pop(branch).free()", "self._tables.pop(branch)")],
)
answers.wrong(
    "the latest that ended is the best", task=6, mistake="a worse one replaced the best",
    edits=[(BETTER, "if True:"), (HOPELESS, HOPELESS.replace("is_hopeless = ", "is_hopeless = branch in ended or "))],
)
answers.wrong(
    "an equal one replaces the best", task=6, mistake="an equal one replaced the best", edits=[(BETTER, BETTER.replace("> self", ">= self"))]
)
answers.wrong(
    "branch 0 is a fork too", task=6, mistake="branch 0 was forked as well",
    edits=[("self._tables = {0: table} | {branch: table.fork() for branch in range(1, n)}", "self._tables = {branch: table.fork() for branch in range(n)}")],
)
answers.wrong(
    "the last log-probability is the score",
    task=6,
    edits=[("self._scores[branch] += logprob", "self._scores[branch] = logprob")],
)
answers.wrong(
    "in the order of `ended`", task=6, edits=[("for branch in sorted(ended):", "for branch in ended:")],
    mistake="of equals the lower branch is the best",
)

# -- found by trying to break the grader: arguments changed, things shared, cases at the edge

answers.wrong("one list for all forks", task=1, edits=[
    ('''        # Not `block_ids` itself: parent and child will exchange blocks in their lists, each in its own.
        return list(block_ids)
''',
     '''        key = tuple(block_ids)
        self._c = getattr(self, "_c", {})
        return self._c.setdefault(key, list(block_ids))
'''),
])
answers.wrong("remembers for ever what was its own", task=4, edits=[
    ('''        if self.is_writable(src):
            return None
        # First take, then give up. The other way round, OutOfBlocks would leave a list that names a block
        # which it no longer counts as a user of: the next to free it frees it under somebody else.
        dst = self.allocator.allocate()
        # free() can't put src into the free queue here: it has another user. So the content of src survives
        # until the copy has run, and no later copy of the step can get src as its dst.
''',
     '''        self._mine = getattr(self, "_mine", set())
        if self.is_writable(src) or (id(block_ids), src) in self._mine:
            return None
        dst = self.allocator.allocate()
        self._mine.add((id(block_ids), dst))
'''),
])
answers.wrong("counts lists, not places", task=5, edits=[
    ("    num_writers = Counter(block_ids[index] for block_ids, index in writers)\n",
     "    num_writers = Counter({id(b): b[i] for b, i in writers}.values())\n"),
])
answers.wrong("takes the writers out of the caller's list", task=5, edits=[
    ("    copies = [cow.make_writable(block_ids, index) for block_ids, index in writers]\n",
     '''    copies = [cow.make_writable(block_ids, index) for block_ids, index in writers]
    writers.clear()
'''),
])
answers.wrong("counts the block with the most copies", task=5, edits=[
    ("    needed = sum(min(w, allocator.ref_count(block_id) - 1) for block_id, w in num_writers.items())\n",
     "    needed = max((min(w, allocator.ref_count(block_id) - 1) for block_id, w in num_writers.items()), default=0)\n"),
])
answers.wrong("checks only if all write into one block", task=5, edits=[
    ("    if needed > allocator.num_free:\n",
     "    if len(num_writers) == 1 and needed > allocator.num_free:\n"),
])
answers.wrong("says what is missing, not what is needed", task=5, edits=[
    ("        raise OutOfBlocks(needed, allocator.num_free, allocator.num_blocks)\n",
     "        raise OutOfBlocks(needed - allocator.num_free, allocator.num_free, allocator.num_blocks)\n"),
])
answers.wrong("sorts the caller's list", task=6, edits=[
    ("        for branch in sorted(ended):\n",
     '''        ended.sort()
        for branch in ended:
'''),
])
answers.wrong("takes the caller's logprobs apart", task=6, edits=[
    ("        for branch, logprob in logprobs.items():\n",
     '''        while logprobs:
            branch, logprob = logprobs.popitem()
'''),
])
answers.wrong("gives out the table's own list", task=6, edits=[
    ("        return list(self._tables[branch].block_ids)\n",
     "        return self._tables[branch].block_ids\n"),
])
answers.wrong("appends before those with higher numbers have freed", task=6, edits=[
    ("                self.best = branch, self._scores[branch]\n",
     '''                self.best = branch, self._scores[branch]
        copies = []
'''),
    ("        return [copy for branch in self.live() for copy in self._tables[branch].append(1).copies]\n",
     '''            else:
                copies += self._tables[branch].append(1).copies
        return copies
'''),
])
answers.wrong("appends in the order of the dict", task=6, edits=[
    ("        return [copy for branch in self.live() for copy in self._tables[branch].append(1).copies]\n",
     "        return [copy for branch in [x for x in logprobs if x in self._tables] for copy in self._tables[branch].append(1).copies]\n"),
])

# -- right ones

answers.right(
    "shares with a comprehension, and asks for the count itself",
    edits=[
        (SHARE_ALL + "        # Not", "        return [self.allocator.share(block_id) or block_id for block_id in block_ids]\n        # Not"),
        (WRITABLE, "        if not self.allocator.ref_count(src) > 1:\n            return None\n"),
        (SAVED, "return sum(full + is_tail_shared for _ in range(n)) - (full + is_tail_shared)"),
    ],
)

answers.right(
    "looks before it takes, and takes back what went wrong",
    source='''
import copy
from collections import defaultdict

from minipaged.errors import OutOfBlocks


class CopyOnWrite:
    """Checks the pool by itself; unlike the solution, it gives up first, since nothing can fail by then."""

    def __init__(self, allocator):
        self.allocator = allocator

    def fork(self, block_ids):
        child = []
        for block_id in block_ids:
            self.allocator.share(block_id)
            child.append(block_id)
        return child

    def is_writable(self, block_id):
        return not self.allocator.ref_count(block_id) >= 2

    def make_writable(self, block_ids, index):
        shared = block_ids[index]
        if not self.is_writable(shared):
            if not self.allocator.num_free:
                raise OutOfBlocks(1, 0, self.allocator.num_blocks)
            self.allocator.free(shared)
            (block_ids[index],) = self.allocator.allocate_many(1)
            return (shared, block_ids[index])
        return None


def blocks_saved(n, prompt_len, output_len, block_size):
    shared, rest = divmod(prompt_len, block_size)
    if rest and not output_len:
        shared += 1
    return shared * n - shared


def make_step_writable(cow, writers):
    users, needed = {}, 0
    for block_ids, index in writers:
        block = block_ids[index]
        users.setdefault(block, cow.allocator.ref_count(block))
        if users[block] > 1:
            users[block] -= 1
            needed += 1
    if needed > cow.allocator.num_free:
        raise OutOfBlocks(needed, cow.allocator.num_free, cow.allocator.num_blocks)
    copies = []
    for block_ids, index in writers:
        made = cow.make_writable(block_ids, index)
        copies += [made] if made else []
    return copies


class BestOf:
    def __init__(self, table, n):
        self.best = None
        self.branches = [[0, 0.0, table]]
        for number in range(1, n):
            self.branches.append([number, 0.0, table.fork()])

    def live(self):
        return [number for number, _, _ in self.branches]

    def block_ids(self, branch):
        return next(list(table.block_ids) for number, _, table in self.branches if number == branch)

    def step(self, logprobs, ended):
        for entry in self.branches:
            entry[1] += logprobs[entry[0]]
        candidates = [(-score, number) for number, score, _ in self.branches if number in ended]
        if candidates:
            score, number = min(candidates)
            if self.best is None or -score > self.best[1]:
                self.best = (number, -score)
        floor = float("-inf") if self.best is None else self.best[1]
        stopped = [entry for entry in self.branches if entry[1] <= floor]
        self.branches = [entry for entry in self.branches if entry[1] > floor]
        for _, _, table in stopped:
            table.free()
        copies = []
        for _, _, table in self.branches:
            copies.extend(table.append(1).copies)
        return copies
''',
)

answers.right(
    "the step tried first, on numbers of users alone",
    edits=[
        ("    num_writers = Counter(block_ids[index] for block_ids, index in writers)\n", ""),
        ("    needed = " + NEEDED + "\n", """    blocks = sorted(block_ids[index] for block_ids, index in writers)
    needed = 0
    for place, block_id in enumerate(blocks):
        before = place - blocks.index(block_id)
        needed += allocator.ref_count(block_id) - before > 1
"""),
    ],
)

answers.right(
    "an exception undone: shares again what it gave up",
    edits=[
        (TAKE, "        self.allocator.free(src)\n        try:\n            dst = self.allocator.allocate()\n        except OutOfBlocks:\n            self.allocator.share(src)\n            raise\n"),
        ("dst.\n" + GIVE_UP, "dst.\n"),
    ],
)

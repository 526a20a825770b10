"""Wrong answers that chapter 9's grader must reject, and right ones that it must accept."""

from __future__ import annotations

from minipaged.course.answers import Answers

answers = Answers("ch09")

THE_PAIR = "the request itself was returned, not its index"
LONGEST_WAIT = "the one who is served first was chosen, who has waited longest and done the most"
NO_PRIORITY = "priorities were left out: the last to arrive was chosen"
NO_ARRIVAL = "of the lowest priority not the last to arrive was chosen"
LAST_LISTED = "the last in the list was chosen: the list may be in any order"
UPSIDE_DOWN = "the largest number was taken for the highest priority: lower numbers are served first"
NO_ADDITIONS = "a multiplication and an addition were counted as one: they are 2 FLOPs"
ALL_PAIRS = "every token was made to see all the others: a token sees only those before it, and itself"
NOT_ITSELF = "a token was not made to see itself"
ONLY_SCORE = "only the score was counted: the weighted sum of the values takes as much again"
NEW_SEE_NEW = "the new tokens were not made to see the cached ones"
CACHE_UNUSED = "the cached tokens were computed again"
ONE_WAY = "only one way was counted: what is swapped out has to come in again"
PART_BLOCK = "only the tokens were moved: a block moves as a whole"
A_BLOCK_MORE = "one block more than needed when the last one is exactly full"
ONCE = "seconds_per_block was counted once, not for each block and each way"
ONE_LESS = "one token too few: rounded down, not up"
ONE_MORE = "one token too many: if both take equally long, swapping is no slower"
BELOW_ONE = "less than one token: there is always at least one to swap"
NO_HALF = "the 2 of a multiplication and an addition was lost"
NO_MATRICES = "the matrices were left out: recomputing is more than attention"
LOST = "the source's blocks were given up although the target had no room: K and V are lost"
LEAK = "the source still counts users who have left: a leak"
ONE_USER = "a block that two tables share has only one user in the target: freed by one, lost to the other"
COPIED_TWICE = "a shared block was moved twice: they share nothing any more"
TOO_MANY = "the target counts more users than there are entries: a leak"
STOLEN = "a block that somebody else uses was taken away from them"
IN_PLACE = "the tables that were passed in were changed"
HEAD_FIRST = "the source's blocks were freed first block first"
ALONE_ONLY = "a block that two branches of this request share was taken for somebody else's"
ALL_MOVED = "a block that somebody else uses was copied, though that makes nothing free"
NOT_KEPT = "the request gave up a block that stays on the GPU: its other user may free it any time"

VICTIM = "return max(range(len(running)), key=lambda index: running[index])"
PAIRS = "pairs = (num_tokens * (num_tokens + 1) - num_cached * (num_cached + 1)) // 2"
FLOPS = "return 2 * num_parameters * num_new + 4 * num_layers * num_heads * head_dim * pairs"
NUM_BLOCKS = "num_blocks = -(-num_tokens // block_size)"
SWAP = "return 2 * num_blocks * (block_size * bytes_per_token / bytes_per_s + seconds_per_block)"
AFFORDABLE = "affordable = swap_s_per_token * flops_per_s / 2 - num_parameters"
CROSSOVER = "return max(1, math.ceil(affordable / (num_layers * num_heads * head_dim) - 1))"
DISTINCT = "distinct = list(dict.fromkeys(uses))"
MOVED = "moved = dict(zip(distinct, target.allocate_many(len(distinct)), strict=True))"
SHARE = """            if block_id in seen:
                target.share(moved[block_id])
"""
FREE = "        source.free_many(reversed(uses))\n"
RETURN = "return [[moved[block_id] for block_id in table] for table in tables], list(moved.items())"
OWN = "own = {block_id for block_id, named in times.items() if gpu.ref_count(block_id) == named}"

# -- task 1 --------------------------------------------------------------------------------------------------

answers.wrong(
    "the pair, not its index", task=1, mistake=THE_PAIR, edits=[(VICTIM, "return max(running)")],
)
answers.wrong(
    "the first in the order of service", task=1, mistake=LONGEST_WAIT,
    edits=[(VICTIM, VICTIM.replace("max(", "min("))],
)
answers.wrong(
    "the last to arrive, whatever its priority", task=1, mistake=NO_PRIORITY,
    edits=[(VICTIM, VICTIM.replace("running[index])", "running[index][1])"))],
)
answers.wrong(
    "the first one of the lowest priority", task=1, mistake=NO_ARRIVAL,
    edits=[(VICTIM, VICTIM.replace("running[index])", "running[index][0])"))],
)
answers.wrong(
    "the last in the list", task=1, mistake=LAST_LISTED, edits=[(VICTIM, "return len(running) - 1")],
)
answers.wrong(
    "a high number is a high priority", task=1, mistake=UPSIDE_DOWN,
    edits=[(VICTIM, VICTIM.replace("running[index])", "(-running[index][0], running[index][1]))"))],
)
answers.wrong(
    "nobody below priority 0 is considered", task=1,
    edits=[(VICTIM, "worst, found = (-1, -1), 0\n        for index, pair in enumerate(running):\n            if pair > worst:\n                worst, found = pair, index\n        return found")],
)

# -- task 2 --------------------------------------------------------------------------------------------------

answers.wrong(
    "one FLOP for a multiplication and an addition", task=2, mistake=NO_ADDITIONS,
    edits=[(FLOPS, FLOPS.replace("2 * num_par", "num_par").replace("4 * num_lay", "2 * num_lay"))],
)
answers.wrong(
    "no causal mask", task=2, mistake=ALL_PAIRS,
    edits=[(PAIRS, "pairs = num_new * num_tokens")],
)
answers.wrong(
    "a token does not see itself", task=2, mistake=NOT_ITSELF,
    edits=[(PAIRS, "pairs = (num_tokens * (num_tokens - 1) - num_cached * (num_cached - 1)) // 2")],
)
answers.wrong(
    "only the scores", task=2, mistake=ONLY_SCORE, edits=[(FLOPS, FLOPS.replace("4 * num_lay", "2 * num_lay"))],
)
answers.wrong(
    "new tokens see new ones only", task=2, mistake=NEW_SEE_NEW,
    edits=[(PAIRS, "pairs = num_new * (num_new + 1) // 2")],
)
answers.wrong(
    "the cache saves attention, not the matrices", task=2, mistake=CACHE_UNUSED,
    edits=[("num_new = num_tokens - num_cached", "num_new = num_tokens")],
)
answers.wrong(
    "a float", task=2, mistake="a float: use // instead of /",
    edits=[(PAIRS, PAIRS.replace("// 2", "/ 2"))],
)
answers.wrong(
    "attention of one layer", task=2, edits=[(FLOPS, FLOPS.replace("4 * num_layers *", "4 *"))],
)

# -- task 3 --------------------------------------------------------------------------------------------------

answers.wrong(
    "out, and never in again", task=3, mistake=ONE_WAY, edits=[(SWAP, SWAP.replace("2 * num", "num"))],
)
answers.wrong(
    "parts of a block", task=3, mistake=PART_BLOCK, edits=[(NUM_BLOCKS, "num_blocks = num_tokens / block_size")],
)
answers.wrong(
    "rounded down", task=3, mistake="the last block, which is not full, was left behind",
    edits=[(NUM_BLOCKS, "num_blocks = num_tokens // block_size")],
)
answers.wrong(
    "one more block, always", task=3, mistake=A_BLOCK_MORE,
    edits=[(NUM_BLOCKS, "num_blocks = num_tokens // block_size + 1")],
)
answers.wrong(
    "started once", task=3, mistake=ONCE,
    edits=[(SWAP, "return 2 * (num_blocks * block_size * bytes_per_token / bytes_per_s + seconds_per_block)")],
)
answers.wrong(
    "the price of a block is forgotten", task=3,
    edits=[(SWAP, "return 2 * num_blocks * block_size * bytes_per_token / bytes_per_s")],
)

# -- task 4 --------------------------------------------------------------------------------------------------

answers.wrong("the crossover rounded down", task=4, mistake=ONE_LESS, edits=[(CROSSOVER, CROSSOVER.replace("math.ceil", "math.floor"))])
answers.wrong(
    "strictly faster", task=4, mistake=ONE_MORE,
    edits=[(CROSSOVER, "return max(1, math.floor(affordable / (num_layers * num_heads * head_dim) - 1) + 1)")],
)
answers.wrong(
    "below one token", task=4, mistake=BELOW_ONE,
    edits=[(CROSSOVER, "return math.ceil(affordable / (num_layers * num_heads * head_dim) - 1)")],
)
answers.wrong("the 2 is lost", task=4, mistake=NO_HALF, edits=[(AFFORDABLE, AFFORDABLE.replace(" / 2", ""))])
answers.wrong(
    "attention alone", task=4, mistake=NO_MATRICES, edits=[(AFFORDABLE, AFFORDABLE.replace(" - num_parameters", ""))],
)
answers.wrong(
    "a token does not see itself, at the crossover", task=4,
    edits=[(CROSSOVER, CROSSOVER.replace("head_dim) - 1)", "head_dim) + 1)"))],
)
answers.wrong(
    "a crossover that is no whole number", task=4, edits=[(CROSSOVER, CROSSOVER.replace("math.ceil(", "float("))],
)
answers.wrong(
    "searches a few tokens only", task=4,
    source='''
from minipaged.preemption import Preemption
from minipaged.simulation.preemption_costs import recompute_flops, swap_seconds


def crossover(swap_s_per_token, flops_per_s, *shape):
    for n in range(1, 16):
        if swap_s_per_token * n <= recompute_flops(n, *shape) / flops_per_s:
            return n
    return 16
''',
)

# -- task 5 --------------------------------------------------------------------------------------------------

answers.wrong(
    "gives up before it has taken", task=5, mistake=LOST,
    edits=[
        (MOVED, "source.free_many(reversed(uses))\n        " + MOVED),
        ("        # All entries, not only the different blocks: each of them is a user that `source` has counted.\n" + FREE, ""),
    ],
)
answers.wrong(
    "takes one by one until there is none", task=5,
    edits=[(MOVED, "moved = {block_id: target.allocate() for block_id in distinct}")],
)
answers.wrong(
    "never gives up anything", task=5, mistake=LEAK, edits=[(FREE, "")],
)
answers.wrong(
    "first block first", task=5, mistake=HEAD_FIRST, edits=[(FREE, FREE.replace("reversed(uses)", "uses"))],
)
answers.wrong(
    "in order of ids", task=5, mistake="blocks were moved in order of their ids",
    edits=[(DISTINCT, "distinct = sorted(set(uses))")],
)
answers.wrong(
    "translates the tables in place", task=5, mistake=IN_PLACE,
    edits=[(RETURN, "for table in tables:\n            table[:] = [moved[block_id] for block_id in table]\n        return tables, list(moved.items())")],
)
answers.wrong(
    "copies the wrong way round", task=5,
    edits=[(RETURN, RETURN.replace("list(moved.items())", "[(new, old) for old, new in moved.items()]"))],
)
answers.wrong(
    "only the first table", task=5,
    edits=[(RETURN, RETURN.replace("for table in tables]", "for table in tables[:1]]"))],
)
answers.wrong(
    "refuses the last block", task=5,
    edits=[
        (MOVED, "if len(distinct) >= target.num_free:\n            raise OutOfBlocks(len(distinct), target.num_free, target.num_blocks)\n        " + MOVED),
        ("from minipaged.block_allocator import BlockAllocator\n", "from minipaged.block_allocator import BlockAllocator\nfrom minipaged.errors import OutOfBlocks\n"),
    ],
)

# -- task 6 --------------------------------------------------------------------------------------------------

answers.wrong("sharing is not counted", task=6, mistake=ONE_USER, edits=[(SHARE, "")])
answers.wrong(
    "every entry is one more user, the first too", task=6, mistake=TOO_MANY,
    edits=[(SHARE, "            target.share(moved[block_id])\n")],
)
answers.wrong(
    "each table by itself", task=6, mistake=COPIED_TWICE,
    edits=[
        ("        uses = list(chain.from_iterable(tables))\n",
         "        if len(tables) > 1:\n            needed = sum(map(len, tables))\n            if needed > target.num_free:\n                target.allocate_many(needed)\n"
         "            parts = [Preemption.move_blocks([table], source, target) for table in tables]\n"
         "            return [part[0][0] for part in parts], [copy for part in parts for copy in part[1]]\n"
         "        uses = list(chain.from_iterable(tables))\n"),
    ],
)
answers.wrong(
    "gives up one user of each block", task=6, mistake=LEAK,
    edits=[(FREE, FREE.replace("reversed(uses)", "reversed(distinct)"))],
)
answers.wrong(
    "empties every block, whoever else uses it", task=6, mistake=STOLEN,
    edits=[(FREE, "        for block_id in reversed(distinct):\n            for _ in range(source.ref_count(block_id)):\n                source.free(block_id)\n")],
)
answers.wrong(
    "takes over the users of the old pool", task=6, mistake=TOO_MANY,
    edits=[("        Preemption._keep_sharing(uses, moved, target)  # task 6\n",
            "        for block_id in distinct:\n            for _ in range(source.ref_count(block_id) - 1):\n"
            "                target.share(moved[block_id])\n")],
)
answers.wrong(
    "needs room for every entry", task=6,
    edits=[
        (MOVED, "if len(uses) > target.num_free:\n            raise OutOfBlocks(len(uses), target.num_free, target.num_blocks)\n        " + MOVED),
        ("from minipaged.block_allocator import BlockAllocator\n", "from minipaged.block_allocator import BlockAllocator\nfrom minipaged.errors import OutOfBlocks\n"),
    ],
)

# -- task 7 --------------------------------------------------------------------------------------------------

answers.wrong(
    "everything moves", task=7, mistake=ALL_MOVED, edits=[(OWN, "own = set(times)")],
)
answers.wrong(
    "own is what has one user", task=7, mistake=ALONE_ONLY,
    edits=[(OWN, OWN.replace("== named", "== 1"))],
)
answers.wrong(
    "gives up what stays", task=7, mistake=NOT_KEPT,
    edits=[("    moved, copies = Preemption.move_blocks(leaving, gpu, cpu)\n",
            "    moved, copies = Preemption.move_blocks(leaving, gpu, cpu)\n    gpu.free_many([block_id for table in tables for block_id in table if block_id not in own])\n")],
)
answers.wrong(
    "comes back one table at a time", task=7,
    edits=[("    moved, copies = Preemption.move_blocks(on_cpu, cpu, gpu)\n",
            "    parts = [Preemption.move_blocks([table], cpu, gpu) for table in on_cpu]\n"
            "    moved, copies = [part[0][0] for part in parts], [copy for part in parts for copy in part[1]]\n")],
)

# -- found by trying to break the grader: arguments changed, things shared, cases at the edge

answers.wrong("takes the victim out of the caller's list", task=1, edits=[
    ("        return max(range(len(running)), key=lambda index: running[index])\n",
     '''        i = max(range(len(running)), key=lambda index: running[index])
        if isinstance(running, list):
            running.pop(i)
        return i
'''),
])
answers.wrong("adds priority and arrival", task=1, edits=[
    ("        return max(range(len(running)), key=lambda index: running[index])\n",
     "        return max(range(len(running)), key=lambda i: running[i][0] * 100 + running[i][1])\n"),
])
answers.wrong("one list for equal tables", task=6, edits=[
    ("        return [[moved[block_id] for block_id in table] for table in tables], list(moved.items())\n",
     '''        memo = {}
        return [memo.setdefault(tuple(t), [moved[b] for b in t]) for t in tables], list(moved.items())
'''),
])
answers.wrong("what stays comes first", task=7, edits=[
    ('        places.append([("cpu", next(new_ids)) if block in own else ("gpu", block) for block in table])\n',
     '        places.append([("gpu", b) for b in table if b not in own] + [("cpu", next(new_ids)) for b in table if b in own])\n'),
])
answers.wrong("what has stayed comes first", task=7, edits=[
    ('        tables.append([next(new_ids) if pool == "cpu" else block_id for pool, block_id in table])\n',
     '        tables.append([b for p, b in table if p == "gpu"] + list(new_ids))\n'),
])
answers.wrong("own only if all branches share it", task=7, edits=[
    ("    own = {block_id for block_id, named in times.items() if gpu.ref_count(block_id) == named}\n",
     "    own = {block_id for block_id, named in times.items() if gpu.ref_count(block_id) == 1 or gpu.ref_count(block_id) == named and named == len(tables)}\n"),
])

# -- right ones ----------------------------------------------------------------------------------------------

answers.right(
    "entry by entry, without a dict of all, and a search for the crossover",
    source='''
from minipaged.errors import OutOfBlocks


class Preemption:
    def choose_victim(running):
        order = sorted(running)
        return list(running).index(order[-1])

    choose_victim = staticmethod(choose_victim)

    @staticmethod
    def move_blocks(tables, source, target):
        names = []
        for table in tables:
            for block in table:
                if block not in names:
                    names.append(block)
        if len(names) > target.num_free:
            raise OutOfBlocks(needed=len(names), free=target.num_free, total=target.num_blocks)
        new_names = [target.allocate() for _ in names]
        result, used = [], set()
        for table in tables:
            row = []
            for block in table:
                new = new_names[names.index(block)]
                if new in used:
                    target.share(new)
                used.add(new)
                row.append(new)
            result.append(row)
        for table in tables[::-1]:
            for block in table[::-1]:
                source.free(block)
        return result, [*zip(names, new_names)][::-1]


def recompute_flops(num_tokens, num_parameters, num_layers, num_heads, head_dim, num_cached=0):
    total = 0
    for position in range(num_cached, num_tokens):
        total += 2 * num_parameters + num_layers * num_heads * 2 * (2 * head_dim) * (position + 1)
    return total


def swap_seconds(num_tokens, block_size, bytes_per_token, bytes_per_s, seconds_per_block=0):
    one = block_size * bytes_per_token / bytes_per_s + seconds_per_block
    return sum(one + one for _ in range(0, num_tokens, block_size))


def crossover(swap_s_per_token, flops_per_s, num_parameters, num_layers, num_heads, head_dim):
    def no_slower(n):
        return swap_s_per_token * n * flops_per_s <= 2 * num_parameters * n + 2 * num_layers * num_heads * head_dim * n * (n + 1)

    low, high = 0, 1
    while not no_slower(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if no_slower(middle) else (middle, high)
    return high


def swap_out_own(tables, gpu, cpu):
    flat = [block for table in tables for block in table]
    stays = {block for block in flat if gpu.ref_count(block) > flat.count(block)}
    moved, copies = Preemption.move_blocks([[b for b in table if b not in stays] for table in tables], gpu, cpu)
    new = dict(copies)
    return [[("gpu", b) if b in stays else ("cpu", new[b]) for b in table] for table in tables], copies


def swap_in_own(places, cpu, gpu):
    moved, copies = Preemption.move_blocks([[b for pool, b in row if pool == "cpu"] for row in places], cpu, gpu)
    new = dict(copies)
    return [[b if pool == "gpu" else new[b] for pool, b in row] for row in places], copies
''',
)
answers.right(
    "counts of uses, and fractions",
    edits=[
        (VICTIM, "return sorted(enumerate(running), key=lambda pair: (pair[1][0], pair[1][1])).pop()[0]"),
        (SHARE, ""),
        ("            seen.add(block_id)\n", "            seen.add(block_id)\n        for block_id, named in Counter(uses).items():\n            for _ in range(named - 1):\n                target.share(moved[block_id])\n"),
        (PAIRS, "pairs = num_new * num_cached + num_new * (num_new + 1) // 2"),
        (NUM_BLOCKS, "num_blocks = (num_tokens + block_size - 1) // block_size"),
        (AFFORDABLE, "affordable = Fraction(swap_s_per_token) * Fraction(flops_per_s) / 2 - num_parameters"),
        ("import math\n", "import math\nfrom fractions import Fraction\n"),
    ],
)
answers.right(
    "copies as a set's list, tables as comprehension over a mapping, a loop for the victim",
    edits=[
        (VICTIM, "victim = 0\n        for index, pair in enumerate(running):\n            if pair > running[victim]:\n                victim = index\n        return victim"),
        (FREE, "        for block_id in uses[::-1]:\n            source.free(block_id)\n"),
        (RETURN, "return [list(map(moved.get, table)) for table in tables], list({*moved.items()})"),
        (FLOPS, "return num_new * 2 * num_parameters + pairs * num_layers * num_heads * (2 * head_dim + 2 * head_dim)"),
        (CROSSOVER, "per_token = num_layers * num_heads * head_dim\n    n = -(-affordable // per_token) - 1\n    return int(n) if n > 1 else 1"),
    ],
)

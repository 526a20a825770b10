"""Chapter 9's grader: preemption. `minipaged check ch09` runs it on exercises/ch09_preemption.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course import Layer, Replay, Step, Task, expect, expect_error, sketch_pool
from minipaged.errors import OutOfBlocks

TASKS = (
    Task(
        1, "who gives way", stars=1, points=10, minutes=5,
        hints=(
            "The pairs are in the order in which requests are served, if you sort them. Who is last then?",
            "`max` finds the largest pair; what is asked for is where it stands in the list.",
            "Let `max` go over the indices, and tell it with `key=` what to compare.",
        ),
        compare="that one comparison of pairs is the whole policy, and the same that orders the queue",
    ),
    Task(
        2, "what recomputing costs", stars=1, points=10, minutes=10,
        hints=(
            "Two sums: tokens times parameters, and pairs of tokens times the price of a pair. Multiplying "
            "and adding is 2 FLOPs.",
            "A pair costs 2 · head_dim for the score and 2 · head_dim for the weighted sum, in every head of "
            "every layer.",
            "The i-th token sees i tokens. All pairs, less the pairs of the cached tokens: "
            "(n · (n + 1) - c · (c + 1)) // 2.",
        ),
        compare="how the cached tokens are subtracted, in the pairs and in the matrices",
    ),
    Task(
        3, "what swapping costs", stars=1, points=10, minutes=5,
        hints=(
            "17 tokens in blocks of 16 are two blocks, and both are moved as a whole.",
            "One block, one way: block_size · bytes_per_token / bytes_per_s + seconds_per_block.",
        ),
        compare="which part of the price depends on the block size, and which does not",
    ),
    Task(
        4, "from where on swapping is cheaper", stars=2, points=15, minutes=15,
        hints=(
            "On paper first: 2·P·n + 2·L·H·D·n·(n + 1) >= s·F·n. What can both sides be divided by?",
            "P + L·H·D·(n + 1) >= s·F / 2. Solve it for n; the sign of >= stays, since L·H·D is positive.",
            "`math.ceil` of (s·F / 2 - P) / (L·H·D) - 1, but at least 1.",
        ),
        compare="what the solution's one subtraction means, and when it is negative",
    ),
    Task(
        5, "move a request's blocks", stars=2, points=20, minutes=15,
        hints=(
            "What can fail, and what has changed by then? Only taking blocks from the target can.",
            "`list(chain.from_iterable(tables))` lists all entries, `dict.fromkeys` of it the different ones "
            "in order.",
            "moved = dict(zip(distinct, target.allocate_many(len(distinct)))); "
            "source.free_many(reversed(uses)); the copies are moved.items(), as a list.",
        ),
        compare="in which order the two pools are asked, and what a failure leaves behind",
    ),
    Task(
        6, "keep what they share", stars=2, points=15, minutes=10,
        hints=(
            "A new block comes with one user. How many should it have?",
            "As many as there are entries that name the old one: `target.share` adds a user.",
            "Go through all entries; for one that has been seen before, share the block that it became.",
        ),
        compare="where users are counted: for entries in both pools, for different blocks in the copies",
    ),
    Task(
        7, "leave what others use", stars=3, points=20, minutes=25,
        hints=(
            "Compare two counts for each block: how often these tables name it, and how many users it has.",
            "Take the blocks that stay out of the tables, give the rest to move_blocks, and put the tables "
            "together again.",
            "One iterator over each moved table: an entry that has moved is `next` of it, another one stays.",
        ),
        compare="that all-or-nothing and the sharing come from move_blocks, with no line of their own",
    ),
)

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
TAKEN = "blocks of the target were taken before it was known whether there are enough of them"
LEAK = "the source still counts users who have left: a leak"
ONE_USER = "a block that two tables share has only one user in the target: freed by one, lost to the other"
COPIED_TWICE = "a shared block was moved twice: they share nothing any more"
TOO_MANY = "the target counts more users than there are entries: a leak"
STOLEN = "a block that somebody else uses was taken away from them"
IN_PLACE = "the tables that were passed in were changed"
HEAD_FIRST = "the source's blocks were freed first block first"
CHANGED = "what the caller passed in was changed"

ALONE_ONLY = "a block that two branches of this request share was taken for somebody else's"
ALL_MOVED = "a block that somebody else uses was copied, though that makes nothing free"
NOT_KEPT = "the request gave up a block that stays on the GPU: its other user may free it any time"

Tables = list[list[int]]


class ModelPool:
    """What a pool should do, as simply as can be said: a list of counts and a list of free blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.counts, self.free_list = [0] * num_blocks, list(range(num_blocks))

    def allocate_many(self, n: int) -> list[int]:
        if n > len(self.free_list):
            raise OutOfBlocks(n, len(self.free_list), len(self.counts))
        taken, self.free_list = self.free_list[:n], self.free_list[n:]
        for block_id in taken:
            self.counts[block_id] = 1
        return taken

    def free(self, block_id: int) -> None:
        self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            self.free_list.append(block_id)


def model_move(tables: Tables, source: ModelPool, target: ModelPool) -> tuple[Tables, list[tuple[int, int]]]:
    """What moving should do: entry by entry, with no cleverness."""
    distinct: list[int] = []
    for table in tables:
        distinct += [block_id for block_id in dict.fromkeys(table) if block_id not in distinct]
    new_ids = target.allocate_many(len(distinct))
    moved = []
    for table in tables:
        moved.append([new_ids[distinct.index(block_id)] for block_id in table])
        for new_id in moved[-1]:
            target.counts[new_id] += 1
    for new_id in new_ids:
        target.counts[new_id] -= 1  # the user that it came with
    for table in reversed(tables):
        for block_id in reversed(table):
            source.free(block_id)
    return moved, sorted(zip(distinct, new_ids, strict=True))


def users_of(pool: Any) -> list[int]:
    return [pool.ref_count(block_id) for block_id in range(pool.num_blocks)]


def move(layer: Layer, tables: Tables, source: Any, target: Any) -> tuple[Tables, list[tuple[int, int]]]:
    """The layer's answer, with the copies sorted, since their order is open."""
    moved, copies = layer.Preemption.move_blocks(tables, source, target)
    return moved, sorted(copies)


# -- task 1: who gives way ---------------------------------------------------------------------------


@pytest.mark.task(1)
@pytest.mark.parametrize(
    ("running", "victim", "mistakes"),
    [
        ([(0, 3)], 0, {(0, 3): THE_PAIR}),
        ([(0, 0), (0, 1), (0, 2)], 2, {0: LONGEST_WAIT, (0, 2): THE_PAIR}),
        ([(0, 2), (0, 0), (0, 1)], 0, {2: LAST_LISTED, 1: LONGEST_WAIT, (0, 2): THE_PAIR}),
        ([(0, 1), (5, 0), (0, 2)], 1, {2: NO_PRIORITY, 0: UPSIDE_DOWN, (5, 0): THE_PAIR}),
        ([(5, 3), (5, 7), (1, 9)], 1, {0: NO_ARRIVAL, 2: NO_PRIORITY}),
        (
            [(0, 10**6), (1, 2)],
            1,
            {0: "priority and arrival were mixed: the priority decides, whatever the arrival"},
        ),
        ([(-1, 9), (0, 4), (-3, 12)], 1, {2: UPSIDE_DOWN, 0: "the sign of a priority was dropped"}),
    ],
)
def test_the_one_who_would_be_served_last_gives_way(
    layer: Layer, running: list[tuple[int, int]], victim: int, mistakes: dict[Any, str]
) -> None:
    passed = list(running)
    expect(f"choose_victim({running})", layer.Preemption.choose_victim(passed), victim, mistakes)
    expect(
        "the list that was passed in", passed, running, [(list(passed), CHANGED)] if passed != running else []
    )


@pytest.mark.task(1)
@settings(max_examples=60)
@given(
    priorities=st.lists(st.integers(-2, 2), min_size=1, max_size=6), shuffle=st.randoms(use_true_random=False)
)
def test_nobody_who_stays_would_be_served_after_the_victim(
    layer: Layer, priorities: list[int], shuffle: Any
) -> None:
    running = [(priority, arrival) for arrival, priority in enumerate(priorities)]
    shuffle.shuffle(running)
    last = running.index(sorted(running)[-1])
    expect(f"choose_victim({running})", layer.Preemption.choose_victim(running), last)


# -- task 2: what recomputing costs ------------------------------------------------------------------

SMALL = {"num_parameters": 1000, "num_layers": 2, "num_heads": 4, "head_dim": 8}


@pytest.mark.task(2)
def test_two_and_three_tokens_by_hand(layer: Layer) -> None:
    expect(
        "recompute_flops(2, num_parameters=1000, num_layers=2, num_heads=4, head_dim=8), of 3 pairs",
        layer.recompute_flops(2, **SMALL), 4768,
        {2384: NO_ADDITIONS, 4000 + 4 * 256: ALL_PAIRS, 4000 + 256: NOT_ITSELF, 4000 + 3 * 128: ONLY_SCORE,
         4768.0: "a float: use // instead of /"},
    )
    expect("recompute_flops(3, 1000, 2, 4, 8)", layer.recompute_flops(3, **SMALL), 7536)


@pytest.mark.task(2)
def test_cached_tokens_are_seen_but_not_computed(layer: Layer) -> None:
    expect(
        "recompute_flops(3, 1000, 2, 4, 8, num_cached=2)",
        layer.recompute_flops(3, **SMALL, num_cached=2), 2768,
        {2000 + 256: NEW_SEE_NEW, 7536: CACHE_UNUSED, 6000 + 768: CACHE_UNUSED, 2000 + 1536: CACHE_UNUSED},
    )
    expect("recompute_flops(7, …, num_cached=7)", layer.recompute_flops(7, **SMALL, num_cached=7), 0)
    expect("recompute_flops(0, …)", layer.recompute_flops(0, **SMALL), 0)


@pytest.mark.task(2)
def test_a_large_model_exactly(layer: Layer) -> None:
    """OPT-13B's layers, 2,000 tokens: the sum over the tokens, one by one."""
    expected = sum(2 * 12_582_912_000 + 4 * 40 * 40 * 128 * seen for seen in range(1, 2001))
    got = layer.recompute_flops(2000, 12_582_912_000, 40, 40, 128)
    expect("recompute_flops(2000, 12_582_912_000, 40, 40, 128)", got, expected)


@pytest.mark.task(2)
@settings(max_examples=40)
@given(num_cached=st.integers(0, 9), num_new=st.integers(0, 9))
def test_any_split_adds_up_token_by_token(layer: Layer, num_cached: int, num_new: int) -> None:
    num_tokens = num_cached + num_new
    expected = sum(2000 + 256 * seen for seen in range(num_cached + 1, num_tokens + 1))
    what = f"recompute_flops({num_tokens}, 1000, 2, 4, 8, num_cached={num_cached})"
    wrong = {sum(2000 + 256 * seen for seen in range(1, num_new + 1)): NEW_SEE_NEW}
    expect(what, layer.recompute_flops(num_tokens, **SMALL, num_cached=num_cached), expected, wrong)


# -- task 3: what swapping costs ---------------------------------------------------------------------


def swap_ns(layer: Layer, num_tokens: int, seconds_per_block: float) -> int:
    """In whole nanoseconds, so that it can be compared exactly: blocks of 16, 100,000 bytes a token, 16 GB/s,
    which is 100,000 ns for a block's bytes."""
    return round(1e9 * layer.swap_seconds(num_tokens, 16, 100_000, 16e9, seconds_per_block))


@pytest.mark.task(3)
def test_twenty_tokens_are_two_blocks_moved_twice(layer: Layer) -> None:
    what = "swap_seconds(20, 16, 100_000, 16e9, 50e-6), in nanoseconds"
    expect(what, swap_ns(layer, 20, 50e-6), 600_000, {300_000: ONE_WAY, 375_000: PART_BLOCK, 500_000: ONCE})
    got = round(1e9 * layer.swap_seconds(20, 16, 100_000, 16e9))
    expect("swap_seconds(20, 16, 100_000, 16e9), in nanoseconds", got, 400_000, {200_000: ONE_WAY})


@pytest.mark.task(3)
@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (33, 3), (160, 10)])
def test_whole_blocks_move(layer: Layer, num_tokens: int, num_blocks: int) -> None:
    wrong = {
        260_000 * (num_blocks + 1): A_BLOCK_MORE,
        260_000 * (num_blocks - 1): "the last block, which is not full, was left behind",
        130_000 * num_blocks: ONE_WAY,
        round(num_tokens / 16 * 260_000): PART_BLOCK,
        200_000 * num_blocks + 30_000: ONCE,
        200_000 * num_blocks + 60_000: ONCE,
    }
    wrong.pop(260_000 * num_blocks, None)  # where a mistake gives the right number
    what = f"swap_seconds({num_tokens}, 16, 100_000, 16e9, 30e-6), in nanoseconds"
    expect(what, swap_ns(layer, num_tokens, 30e-6), 260_000 * num_blocks, wrong)


@pytest.mark.task(3)
def test_small_blocks_pay_more_often(layer: Layer) -> None:
    """64 tokens: the bytes take 800 µs whatever the block size; what each block costs besides does not."""
    got = [round(1e9 * layer.swap_seconds(64, size, 100_000, 16e9, 10e-6)) for size in (1, 4, 16, 64)]
    what = "swap_seconds(64, size, 100_000, 16e9, 10e-6) for the sizes 1, 4, 16, 64, in nanoseconds"
    expect(what, got, [800_000 + 20_000 * num_blocks for num_blocks in (64, 16, 4, 1)])


# -- task 4: from where on swapping is cheaper -------------------------------------------------------


@pytest.mark.task(4)
@pytest.mark.parametrize(
    ("swap_s", "tokens", "wrong"),
    [
        (0.5, 9, {10: ONE_MORE, 8: ONE_LESS, 35: NO_HALF, 25: NO_MATRICES, 9.0: "a float: round to an int"}),
        (0.51, 10, {9: ONE_LESS, 10.0: "a float"}),
        (0.3, 1, {0: BELOW_ONE, -1: BELOW_ONE, 15: NO_MATRICES}),
        (0.0, 1, {-16: BELOW_ONE}),
        (0.343, 1, {2: ONE_MORE}),
        (0.344, 2, {1: ONE_LESS}),
    ],
)
def test_the_crossover_by_hand(layer: Layer, swap_s: float, tokens: int, wrong: dict[Any, str]) -> None:
    what = f"crossover({swap_s}, 6560.0, num_parameters=1000, num_layers=2, num_heads=4, head_dim=8)"
    expect(what, layer.crossover(swap_s, 6560.0, **SMALL), tokens, wrong)


@pytest.mark.task(4)
@settings(max_examples=60)
@given(swap=st.integers(1, 4000), flops_per_s=st.sampled_from([4096, 65_536]), layers=st.integers(1, 3))
def test_swapping_is_no_slower_there_and_slower_one_token_before(
    layer: Layer, swap: int, flops_per_s: int, layers: int
) -> None:
    def is_no_slower(n: int) -> bool:
        flops = 2 * 1000 * n + 4 * layers * 4 * 8 * sum(range(1, n + 1))
        return n * swap * flops_per_s <= 1024 * flops

    seconds = swap / 1024  # a float holds it exactly, and its products with a power of two
    got = layer.crossover(seconds, float(flops_per_s), 1000, layers, 4, 8)
    is_right = (
        isinstance(got, int) and got >= 1 and is_no_slower(got) and (got == 1 or not is_no_slower(got - 1))
    )
    if not is_right:
        expected = next(n for n in range(1, 10_000) if is_no_slower(n))
        expect(f"crossover({seconds}, {flops_per_s}.0, 1000, {layers}, 4, 8)", got, expected)


# -- task 5: move ------------------------------------------------------------------------------------


@pytest.mark.task(5)
def test_a_table_moves_and_its_blocks_are_free(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(6), layer.given.BlockAllocator(4)
    cpu.allocate_many(1)
    table = gpu.allocate_many(3)
    got = move(layer, [table], gpu, cpu)
    what = "move_blocks([[0, 1, 2]], gpu, cpu), with block 0 of the CPU pool in use"
    expect(what, got, ([[1, 2, 3]], [(0, 1), (1, 2), (2, 3)]))
    expect("the users in the CPU pool", users_of(cpu), [1, 1, 1, 1])
    expect("the users in the GPU pool", users_of(gpu), [0] * 6, [([1, 1, 1, 0, 0, 0], LEAK)])
    expect(
        "the GPU pool's free queue: the last block was freed first", gpu.free_blocks(), [3, 4, 5, 2, 1, 0],
        [([3, 4, 5, 0, 1, 2], HEAD_FIRST)],
    )


@pytest.mark.task(5)
def test_several_tables_move_in_order(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(8), layer.given.BlockAllocator(8)
    gpu.allocate_many(8)
    got = move(layer, [[7, 3], [], [5]], gpu, cpu)
    wrong = [(([[2, 0], [], [1]], [(3, 0), (5, 1), (7, 2)]), "blocks were moved in order of their ids")]
    expect(
        "move_blocks([[7, 3], [], [5]], gpu, cpu)", got, ([[0, 1], [], [2]], [(3, 1), (5, 2), (7, 0)]), wrong
    )
    expect("the GPU pool's free queue", gpu.free_blocks(), [5, 3, 7], [([7, 3, 5], HEAD_FIRST)])


@pytest.mark.task(5)
def test_without_room_neither_pool_changes(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(4), layer.given.BlockAllocator(3)
    table = gpu.allocate_many(3)
    cpu.allocate_many(1)
    what = "move_blocks([[0, 1, 2]], gpu, cpu), with 2 of the CPU pool's 3 blocks free"
    expect_error(what, OutOfBlocks, lambda: move(layer, [table], gpu, cpu), [3, 2, 3])
    expect("the users in the GPU pool after it", users_of(gpu), [1, 1, 1, 0], [([0, 0, 0, 0], LOST)])
    expect(
        "the CPU pool's free queue after it",
        cpu.free_blocks(),
        [1, 2],
        [([], TAKEN), ([2], TAKEN), ([2, 1], TAKEN)],
    )
    expect("the table that was passed in", table, [0, 1, 2], [([], IN_PLACE)])


@pytest.mark.task(5)
def test_exactly_enough_is_enough_and_nothing_takes_nothing(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(2), layer.given.BlockAllocator(2)
    table = gpu.allocate_many(2)
    expect("move_blocks([], gpu, cpu)", move(layer, [], gpu, cpu), ([], []))
    expect("move_blocks([[]], gpu, cpu)", move(layer, [[]], gpu, cpu), ([[]], []))
    got = move(layer, [table], gpu, cpu)
    expect("move_blocks([[0, 1]], gpu, cpu) to a pool of 2", got, ([[0, 1]], [(0, 0), (1, 1)]))
    expect("move_blocks([], gpu, cpu), with no block free", move(layer, [], gpu, cpu), ([], []))


@pytest.mark.task(5)
def test_the_new_tables_are_lists_of_their_own(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(4), layer.given.BlockAllocator(4)
    gpu.allocate_many(2)
    cpu.allocate_many(2)
    tables = [[0], [1]]
    moved, _ = move(layer, tables, gpu, cpu)
    moved[0].append(99)
    expect("the tables that were passed in", tables, [[0], [1]], [([[2, 99], [3]], IN_PLACE)])
    expect("the second new table, after the first one was changed", moved[1], [3])


# -- task 6: keep what they share --------------------------------------------------------------------


def share_all(pool: Any, tables: Tables) -> None:
    """One user for each entry of the tables; each block has one already."""
    entries = [block_id for table in tables for block_id in table]
    for place, block_id in enumerate(entries):
        if block_id in entries[:place]:
            pool.share(block_id)


@pytest.mark.task(6)
def test_a_shared_block_moves_once_and_is_still_shared(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(8), layer.given.BlockAllocator(4)
    gpu.allocate_many(8)
    tables = [[7, 3], [7, 4]]
    share_all(gpu, tables)
    got = move(layer, tables, gpu, cpu)
    wrong = [(([[0, 1], [2, 3]], [(3, 1), (4, 3), (7, 0), (7, 2)]), COPIED_TWICE)]
    what = "move_blocks([[7, 3], [7, 4]], gpu, cpu)"
    expect(what, got, ([[0, 1], [0, 2]], [(3, 1), (4, 2), (7, 0)]), wrong)
    counts = [
        ([1, 1, 1, 0], ONE_USER),
        ([3, 1, 1, 0], TOO_MANY),
        ([3, 2, 2, 0], TOO_MANY),
        ([2, 2, 2, 0], TOO_MANY),
    ]
    expect("the users in the CPU pool", users_of(cpu), [2, 1, 1, 0], counts)
    expect(
        "the users of blocks 3, 4 and 7",
        [gpu.ref_count(b) for b in (3, 4, 7)],
        [0, 0, 0],
        [([0, 0, 1], LEAK)],
    )


@pytest.mark.task(6)
def test_three_branches_come_back_as_they_went(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(5), layer.given.BlockAllocator(5)
    gpu.allocate_many(5)
    tables = [[0, 1, 2], [0, 1, 3], [0, 4]]
    share_all(gpu, tables)
    swapped, _ = move(layer, tables, gpu, cpu)
    expect("the users in the CPU pool", users_of(cpu), [3, 2, 1, 1, 1], [([1] * 5, ONE_USER)])
    back, _ = move(layer, swapped, cpu, gpu)
    expect("the tables, swapped out and in", back, [[4, 3, 2], [4, 3, 1], [4, 0]])
    expect("the users in the GPU pool", users_of(gpu), [1, 1, 1, 2, 3], [([1] * 5, ONE_USER)])
    expect("the users in the CPU pool", users_of(cpu), [0] * 5, [([2, 1, 0, 0, 0], LEAK)])


@pytest.mark.task(6)
def test_what_somebody_else_uses_stays_with_them(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(4), layer.given.BlockAllocator(4)
    gpu.allocate_many(3)
    tables = [[0, 1], [0, 2]]
    share_all(gpu, tables)
    gpu.share(0)
    move(layer, tables, gpu, cpu)
    wrong = [([0, 0, 0, 0], STOLEN), ([2, 0, 0, 0], LEAK), ([3, 1, 1, 0], LEAK)]
    expect("the users in the GPU pool; block 0 was somebody else's too", users_of(gpu), [1, 0, 0, 0], wrong)
    expect(
        "the users in the CPU pool",
        users_of(cpu),
        [2, 1, 1, 0],
        [([1, 1, 1, 0], ONE_USER), ([3, 1, 1, 0], TOO_MANY)],
    )


@pytest.mark.task(6)
def test_different_blocks_are_counted_not_entries(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(4), layer.given.BlockAllocator(3)
    gpu.allocate_many(4)
    tables = [[0, 1], [0, 2], [0, 2]]
    share_all(gpu, tables)
    got = move(layer, tables, gpu, cpu)
    what = "move_blocks([[0, 1], [0, 2], [0, 2]], gpu, cpu): 3 different blocks, and a CPU pool of 3"
    expect(what, got, ([[0, 1], [0, 2], [0, 2]], [(0, 0), (1, 1), (2, 2)]))
    got[0][1].append(99)
    expect("the third new table, after the second, equal one was changed", got[0][2], [0, 2])
    got[0][1].pop()
    full = layer.given.BlockAllocator(2)
    expect_error(
        "the same from there to a pool of 2", OutOfBlocks, lambda: move(layer, got[0], cpu, full), [3, 2, 2]
    )
    expect("the users in the CPU pool after it", users_of(cpu), [3, 1, 2], [([0, 0, 0], LOST)])
    expect(
        "the free queue of the pool of 2 after it", full.free_blocks(), [0, 1], [([], TAKEN), ([1], TAKEN)]
    )


def name_mistake(step: Step) -> str | None:
    """The known mistake that a wrong step shows."""
    source, target = ("gpu", "cpu") if "gpu, cpu" in step.operation else ("cpu", "gpu")
    came, wanted, before = step.state, step.expected_state, step.state_before
    if step.expected.error is not None:
        if came[f"{source} users"] != before[f"{source} users"]:
            return LOST
        return TAKEN if came[f"{target} free"] != before[f"{target} free"] else None
    if len(came[f"{target} free"]) < len(wanted[f"{target} free"]):
        return COPIED_TWICE
    if sum(came[f"{source} users"]) > sum(wanted[f"{source} users"]):
        return LEAK
    if sum(came[f"{source} users"]) < sum(wanted[f"{source} users"]):
        return STOLEN
    if sum(came[f"{target} users"]) < sum(wanted[f"{target} users"]):
        return ONE_USER
    if sum(came[f"{target} users"]) > sum(wanted[f"{target} users"]):
        return TOO_MANY
    return HEAD_FIRST if came[f"{source} free"] != wanted[f"{source} free"] else None


def draw(state: dict[str, Any]) -> str:
    """Both pools, one below the other."""
    lines = []
    for pool in ("gpu", "cpu"):
        lines += [f"{pool} pool", sketch_pool(state[f"{pool} users"], state[f"{pool} free"])]
    return "\n".join(lines)


# Two requests in a GPU pool of 7 and a CPU pool of 4. Block 0 is a prompt that both begin with.
REQUESTS: dict[str, Tables] = {"A": [[0, 1, 2], [0, 1, 3]], "B": [[0, 4], [0, 4], [0, 5]]}


def copied(tables: Tables) -> Tables:
    """For a layer that may change what it is given: the next example must start anew."""
    return [list(table) for table in tables]


@pytest.mark.task(6)
@settings(max_examples=40)
@given(moves=st.lists(st.sampled_from(["A", "B"]), max_size=6))
def test_any_history_of_swaps(layer: Layer, moves: list[str]) -> None:
    """Each move takes a request to where it is not: out, or in again."""
    pools = {"gpu": layer.given.BlockAllocator(7), "cpu": layer.given.BlockAllocator(4)}
    models = {"gpu": ModelPool(7), "cpu": ModelPool(4)}
    tables = {name: copied(each) for name, each in REQUESTS.items()}
    where = dict.fromkeys(REQUESTS, "gpu")
    everything = [table for each in tables.values() for table in copied(each)]
    pools["gpu"].allocate_many(6)
    share_all(pools["gpu"], everything)
    models["gpu"].allocate_many(6)
    models["gpu"].counts = [sum(table.count(block) for table in everything) for block in range(7)]

    def state() -> dict[str, Any]:
        users = {f"{name} users": users_of(pool) for name, pool in pools.items()}
        return users | {f"{name} free": pool.free_blocks() for name, pool in pools.items()}

    def expected_state() -> dict[str, Any]:
        users = {f"{name} users": list(model.counts) for name, model in models.items()}
        return users | {f"{name} free": list(model.free_list) for name, model in models.items()}

    setup = "gpu, cpu = BlockAllocator(7), BlockAllocator(4); blocks 0 to 5 are in use"
    replay = Replay(setup, state, expected_state, draw=draw, name_mistake=name_mistake)
    for name in moves:
        source, target = where[name], "cpu" if where[name] == "gpu" else "gpu"
        num_needed = len({block for table in tables[name] for block in table})
        fits = num_needed <= len(models[target].free_list)
        moved = replay.step(
            f"move_blocks({tables[name]}, {source}, {target})",
            lambda t=tables[name], s=pools[source], d=pools[target]: move(layer, copied(t), s, d),
            lambda t=tables[name], s=models[source], d=models[target]: model_move(t, s, d),
        )
        if fits:
            assert isinstance(moved, tuple)
            tables[name], where[name] = moved[0], target


# -- task 7: the challenge ---------------------------------------------------------------------------


def swap_out(layer: Layer, tables: Tables, gpu: Any, cpu: Any) -> tuple[Any, list[tuple[int, int]]]:
    places, copies = layer.swap_out_own(tables, gpu, cpu)
    return places, sorted(copies)


def swap_in(layer: Layer, places: Any, cpu: Any, gpu: Any) -> tuple[Tables, list[tuple[int, int]]]:
    tables, copies = layer.swap_in_own(places, cpu, gpu)
    return tables, sorted(copies)


@pytest.mark.task(7)
def test_a_block_of_somebody_else_too_stays_with_both(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(6), layer.given.BlockAllocator(4)
    gpu.allocate_many(6)
    tables = [[5, 2], [5, 3]]
    share_all(gpu, tables)
    gpu.share(5)
    got = swap_out(layer, tables, gpu, cpu)
    wrong = [(([[("cpu", 0), ("cpu", 1)], [("cpu", 0), ("cpu", 2)]], [(2, 1), (3, 2), (5, 0)]), ALL_MOVED)]
    expected = [[("gpu", 5), ("cpu", 0)], [("gpu", 5), ("cpu", 1)]]
    expect("swap_out_own([[5, 2], [5, 3]], gpu, cpu)", got, (expected, [(2, 0), (3, 1)]), wrong)
    wrong_users = [([1, 1, 0, 0, 1, 1], NOT_KEPT), ([1, 1, 0, 0, 1, 2], NOT_KEPT)]
    expect("the users in the GPU pool", users_of(gpu), [1, 1, 0, 0, 1, 3], wrong_users)
    expect("the users in the CPU pool", users_of(cpu), [1, 1, 0, 0])


@pytest.mark.task(7)
def test_what_only_its_own_branches_share_moves(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(4), layer.given.BlockAllocator(4)
    gpu.allocate_many(4)
    tables = [[0, 1, 2], [0, 1, 3]]
    share_all(gpu, tables)
    gpu.share(0)
    expected = [[("gpu", 0), ("cpu", 0), ("cpu", 1)], [("gpu", 0), ("cpu", 0), ("cpu", 2)]]
    wrong = [
        (
            ([[("gpu", 0), ("gpu", 1), ("cpu", 0)], [("gpu", 0), ("gpu", 1), ("cpu", 1)]], [(2, 0), (3, 1)]),
            ALONE_ONLY,
        )
    ]
    got = swap_out(layer, tables, gpu, cpu)
    what = "swap_out_own([[0, 1, 2], [0, 1, 3]], gpu, cpu), with block 0 used by another request too"
    expect(what, got, (expected, [(1, 0), (2, 1), (3, 2)]), wrong)
    expect("the users in the CPU pool", users_of(cpu), [2, 1, 1, 0], [([1, 1, 1, 0], ONE_USER)])


@pytest.mark.task(7)
def test_what_stays_may_stand_anywhere_and_be_shared_by_some(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(5), layer.given.BlockAllocator(5)
    gpu.allocate_many(5)
    tables = [[0, 1, 2], [0, 1, 3], [0, 4]]
    share_all(gpu, tables)
    gpu.share(1)
    expected = [
        [("cpu", 0), ("gpu", 1), ("cpu", 1)],
        [("cpu", 0), ("gpu", 1), ("cpu", 2)],
        [("cpu", 0), ("cpu", 3)],
    ]
    what = "swap_out_own([[0, 1, 2], [0, 1, 3], [0, 4]], gpu, cpu), with block 1 used by another request too"
    places, copies = swap_out(layer, tables, gpu, cpu)
    moved_first = "the places are not in the order of the entries"
    wrong = [[sorted(row, reverse=True) for row in expected], [sorted(row) for row in expected]]
    expect(what, places, expected, [(each, moved_first) for each in wrong])
    expect("its copies", copies, [(0, 0), (2, 1), (3, 2), (4, 3)])
    tables, _ = swap_in(layer, places, cpu, gpu)
    order = [[4, 1, 3], [4, 1, 2], [4, 0]]
    expect(f"swap_in_own({places}, cpu, gpu)", tables, order)
    expect("the users in the GPU pool", users_of(gpu), [1, 3, 1, 1, 3])
    gpu, cpu = layer.given.BlockAllocator(4), layer.given.BlockAllocator(4)
    gpu.allocate_many(4)
    tables = [[0, 1], [0, 2], [3]]
    share_all(gpu, tables)
    expected = [[("cpu", 0), ("cpu", 1)], [("cpu", 0), ("cpu", 2)], [("cpu", 3)]]
    what = "swap_out_own([[0, 1], [0, 2], [3]], gpu, cpu), nothing of which anybody else uses"
    expect(what, swap_out(layer, tables, gpu, cpu)[0], expected)


@pytest.mark.task(7)
def test_out_and_in_again_needs_no_more_blocks_than_before(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(4), layer.given.BlockAllocator(4)
    gpu.allocate_many(4)
    tables = [[0, 1, 2], [0, 1, 3]]
    share_all(gpu, tables)
    gpu.share(0)
    places, _ = swap_out(layer, tables, gpu, cpu)
    expect("the GPU pool's free queue after swap_out_own", gpu.free_blocks(), [3, 2, 1])
    got = swap_in(layer, places, cpu, gpu)
    expected = ([[0, 3, 2], [0, 3, 1]], [(0, 3), (1, 2), (2, 1)])
    expect(f"swap_in_own({places}, cpu, gpu)", got, expected)
    expect("the users in the GPU pool", users_of(gpu), [3, 1, 1, 2], [([3, 1, 1, 1], ONE_USER)])
    expect("the users in the CPU pool", users_of(cpu), [0] * 4, [([1, 0, 0, 0], LEAK)])


@pytest.mark.task(7)
def test_a_request_of_which_nothing_is_its_own_stays_as_a_whole(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(2), layer.given.BlockAllocator(1)
    table = gpu.allocate_many(2)
    share_all(gpu, [table, table])
    places, copies = swap_out(layer, [table, []], gpu, cpu)
    expected = ([[("gpu", 0), ("gpu", 1)], []], [])
    expect("swap_out_own([[0, 1], []], gpu, cpu)", (places, copies), expected)
    expect("the users in the GPU pool", users_of(gpu), [2, 2], [([1, 1], NOT_KEPT)])
    expect("swap_in_own of these places", swap_in(layer, places, cpu, gpu), ([[0, 1], []], []))


@pytest.mark.task(7)
def test_without_room_neither_pool_changes_out_nor_in(layer: Layer) -> None:
    gpu, cpu = layer.given.BlockAllocator(4), layer.given.BlockAllocator(2)
    table = gpu.allocate_many(3)
    gpu.share(0)
    cpu.allocate()
    what = "swap_out_own([[0, 1, 2]], gpu, cpu), with block 0 of the CPU pool in use"
    expect_error(what, OutOfBlocks, lambda: swap_out(layer, [[*table]], gpu, cpu), [2, 1, 2])
    expect("the users in both pools after it", users_of(gpu) + users_of(cpu), [2, 1, 1, 0, 1, 0])
    cpu.free(0)
    places, _ = swap_out(layer, [[*table]], gpu, cpu)
    gpu.allocate_many(2)
    what = f"swap_in_own({places}, cpu, gpu), with one block free"
    expect_error(what, OutOfBlocks, lambda: swap_in(layer, places, cpu, gpu), [2, 1, 4])
    expect("the users in the CPU pool after it", users_of(cpu), [1, 1], [([0, 0], LOST)])
    expect("the GPU pool's free blocks after it", gpu.num_free, 1, {0: TAKEN})

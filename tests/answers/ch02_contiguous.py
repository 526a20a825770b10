"""Wrong answers that chapter 2's grader must reject, and right ones that it must accept."""

from __future__ import annotations

from minipaged.course.answers import Answers

answers = Answers("ch02")

# -- task 1: reservation --------------------------------------------------------------------------------

answers.wrong(
    "the power of two of prompt and output together", task=1,
    mistake="the power of two was taken of prompt and output together",
    edits=[("min(prompt_len + next_power_of_two(output_len), max_model_len)",
            "min(next_power_of_two(final_len), max_model_len)")],
)
answers.wrong(
    "pow2 may exceed the model", task=1, mistake="the reservation is longer than the model allows",
    edits=[("min(prompt_len + next_power_of_two(output_len), max_model_len)",
            "prompt_len + next_power_of_two(output_len)")],
)
answers.wrong(
    "a power of two is rounded up again", task=1,
    mistake="an output that is a power of two already was rounded up to the next one",
    edits=[("next_power_of_two(output_len), max", "next_power_of_two(output_len + 1), max")],
)
answers.wrong(
    "the oracle forgets the prompt", task=1, mistake="the prompt needs slots too",
    edits=[("        return final_len\n", "        return output_len\n")],
)
answers.wrong(
    "a full-length request is refused", task=1,
    edits=[("if final_len > max_model_len:", "if final_len >= max_model_len:")],
)
answers.wrong(
    "only the oracle looks whether it fits", task=1, mistake="a request that can never fit was admitted",
    edits=[("if final_len > max_model_len:", 'if policy == "oracle" and final_len > max_model_len:')],
)
answers.wrong(
    "an unknown policy is the oracle's", task=1,
    edits=[('    if policy == "oracle":\n', '    if policy != "":\n')],
)
answers.wrong(
    "a part of a policy's name will do", task=1,
    edits=[('    if policy == "max":\n', '    if policy in "max":\n')],
)

# -- task 2: account ------------------------------------------------------------------------------------

answers.wrong(
    "what is still to come counts as waste", task=2,
    mistake="slots that will still be filled were counted as never used",
    edits=[("reserved += used_in_the_end - num_tokens", "reserved += 0"),
           ("internal += size - used_in_the_end", "internal += size - num_tokens")],
)
answers.wrong(
    "all that is set aside is reserved", task=2,
    mistake="slots that are never used were counted as still to be filled",
    edits=[("reserved += used_in_the_end - num_tokens", "reserved += size - num_tokens"),
           ("internal += size - used_in_the_end", "internal += 0")],
)
answers.wrong(
    "every free slot is external", task=2,
    edits=[("if needed > 0 and max(sizes, default=0) < needed <= sum(sizes):", "if sizes:")],
)
answers.wrong(
    "too few in any case is external too", task=2,
    mistake="free slots were counted as external fragmentation although they would not suffice in one piece",
    edits=[("max(sizes, default=0) < needed <= sum(sizes)", "max(sizes, default=0) < needed")],
)
answers.wrong(
    "a hole of exactly the right size does not count", task=2,
    mistake="free slots were counted as external fragmentation although a hole fits",
    edits=[("max(sizes, default=0) < needed", "max(sizes, default=0) <= needed")],
)
answers.wrong(
    "exactly enough is too few", task=2,
    edits=[("needed <= sum(sizes)", "needed < sum(sizes)")],
)
answers.wrong(
    "no holes are a crash", task=2,
    edits=[("max(sizes, default=0)", "max(sizes)")],
)
answers.wrong(
    "a sequence that outgrows its reservation has negative waste", task=2,
    mistake="more slots are reserved than the reservation has",
    edits=[("used_in_the_end = min(final_len, size)", "used_in_the_end = final_len")],
)
answers.wrong(
    "the holes are sorted where they are", task=2,
    edits=[("    sizes = [size for _, size in holes]\n",
            "    holes.sort()\n    sizes = [size for _, size in holes]\n")],
)
answers.wrong(
    "the sequences are used up", task=2,
    edits=[("    for size, num_tokens, final_len in sequences:\n",
            "    sequences = sequences if isinstance(sequences, list) else list(sequences)\n"
            "    while sequences:\n        size, num_tokens, final_len = sequences.pop()\n")],
)
answers.wrong(
    "the sequences are gone through twice", task=2,
    edits=[("        used += num_tokens\n", ""),
           ("    sizes = [size for _, size in holes]\n",
            "    used = sum(num_tokens for _, num_tokens, _ in sequences)\n"
            "    sizes = [size for _, size in holes]\n")],
)

# -- task 3: reserve ------------------------------------------------------------------------------------

answers.wrong(
    "a hole of the exact size is passed over", task=3,
    mistake="a hole of exactly the right size was passed over",
    edits=[("            if hole_size >= size:", "            if hole_size > size:")],
)
answers.wrong(
    "a hole of 0 slots stays", task=3, mistake="a hole of 0 slots was left behind",
    edits=[("[rest] if hole_size > size else []", "[rest]")],
)
answers.wrong(
    "from the right end of the hole", task=3,
    mistake="the slots were taken from the right end of the hole",
    edits=[("rest = (start + size, hole_size - size)",
            "rest = (start, hole_size - size); start += hole_size - size")],
)
answers.wrong(
    "enough in all is enough", task=4,
    edits=[("            if hole_size >= size:", "            if self.num_free >= size:")],
)
answers.wrong(
    "the reservation is not written down", task=3,
    edits=[("                self._sizes[start] = size\n", "")],
)
answers.wrong(
    "the wrong size is written down", task=3,
    edits=[("                self._sizes[start] = size\n",
            "                self._sizes[start] = hole_size\n")],
)
answers.wrong(
    "no slots are a reservation too", task=3,
    edits=[('        if size < 1:\n            raise ValueError(f"cannot reserve {size} slots")\n'
            "        for index", "        for index")],
)
answers.wrong(
    "an error where the request should wait", task=3,
    edits=[("        # None and not an error: nobody made a mistake, the request just has to wait.\n"
            "        return None\n", '        raise ValueError(f"no hole of {size} slots")\n')],
)
answers.wrong(
    "best fit", task=4,
    mistake="a later hole was taken although an earlier one is long enough: that is not first fit (reserve)",
    edits=[("in enumerate(self._holes):\n",
            "in sorted(enumerate(self._holes), key=lambda entry: entry[1][1]):\n")],
)
answers.wrong(
    "the last hole that fits", task=4,
    edits=[("in enumerate(self._holes):\n", "in reversed(list(enumerate(self._holes))):\n")],
)

# -- task 4: release ------------------------------------------------------------------------------------

answers.wrong(
    "holes are never joined", task=4, mistake="two holes that touch were not joined",
    edits=[("[hole for hole in self._holes if sum(hole) == start or hole[0] == end]", "[]")],
)
answers.wrong(
    "joined with the left neighbour only", task=4, mistake="two holes that touch were not joined",
    edits=[("if sum(hole) == start or hole[0] == end]", "if sum(hole) == start]")],
)
answers.wrong(
    "joined with the right neighbour only", task=4, mistake="two holes that touch were not joined",
    edits=[("if sum(hole) == start or hole[0] == end]", "if hole[0] == end]")],
)
answers.wrong(
    "one neighbour at a time", task=4, mistake="two holes that touch were not joined",
    edits=[("if sum(hole) == start or hole[0] == end]:", "if sum(hole) == start or hole[0] == end][:1]:")],
)
answers.wrong(
    "the new hole goes to the end of the list", task=4,
    mistake="the holes are not in the order of their first slots",
    edits=[("insort(self._holes, (start, end - start))", "self._holes.append((start, end - start))")],
)
answers.wrong(
    "the old holes stay in the list", task=4, mistake="slots belong to two at once",
    edits=[("            self._holes.remove(hole)\n", "")],
)
answers.wrong(
    "releasing twice is fine", task=4,
    edits=[('            raise ValueError(f"no reservation begins at slot {start}")\n'
            "        end =", "            return\n        end =")],
)
answers.wrong(
    "the slots are forgotten", task=4,
    mistake="slots belong neither to a hole nor to a reservation: they are lost",
    edits=[("        insort(self._holes, (start, end - start))\n", "")],
)
answers.wrong(
    "the reservation stays in the books", task=4,
    edits=[("end = start + self._sizes.pop(start)", "end = start + self._sizes[start]")],
)

# -- task 5: Buddy --------------------------------------------------------------------------------------

answers.wrong(
    "the largest chunk is halved", task=5,
    mistake="a larger chunk was halved although a smaller one suffices",
    edits=[("chunk = min(fitting)", "chunk = max(fitting)")],
)
answers.wrong(
    "the right half is kept", task=5, mistake="the right half was kept, not the left one",
    edits=[("            self._free[chunk].add(start + chunk)\n",
            "            self._free[chunk].add(start)\n            start += chunk\n")],
)
answers.wrong(
    "the rightmost of several chunks", task=5,
    edits=[("start = min(self._free[chunk])", "start = max(self._free[chunk])")],
)
answers.wrong(
    "a size without chunks is taken for one with", task=5,
    edits=[("if starts and chunk >= wanted]", "if chunk >= wanted]")],
)
answers.wrong(
    "the size asked for is written down, not the chunk's", task=5,
    mistake="the chunk is 4 slots, not the 3 that were asked for",
    edits=[("self._sizes[start] = wanted", "self._sizes[start] = size")],
)
answers.wrong(
    "halves are not kept", task=5,
    mistake="slots belong neither to a hole nor to a reservation: they are lost",
    edits=[("            self._free[chunk].add(start + chunk)\n", "")],
)
answers.wrong(
    "halved once only", task=5,
    edits=[("while chunk > wanted:", "if chunk > wanted:")],
)
answers.wrong(
    "joined with whatever lies to the right", task=5,
    mistake="a chunk was joined with a neighbour that is not its buddy",
    edits=[("while (buddy := start ^ chunk) in", "while (buddy := start + chunk) in")],
)
answers.wrong(
    "joined once only", task=5, mistake="two holes that touch were not joined",
    edits=[("while (buddy := start ^ chunk) in", "if (buddy := start ^ chunk) in")],
)
answers.wrong(
    "never joined", task=5, mistake="two holes that touch were not joined",
    edits=[("while (buddy := start ^ chunk) in", "while (buddy := -1) in")],
)
answers.wrong(
    "the joined chunk begins at the right half", task=5,
    edits=[("start, chunk = min(start, buddy), 2 * chunk", "start, chunk = max(start, buddy), 2 * chunk")],
)
answers.wrong(
    "a chunk can be released twice", task=5,
    edits=[('            raise ValueError(f"no reservation begins at slot {start}")\n'
            "        chunk =", "            return\n        chunk =")],
)
answers.wrong(
    "a chunk of no slots", task=5,
    edits=[('        if size < 1:\n            raise ValueError(f"cannot reserve {size} slots")\n'
            "        wanted", "        wanted")],
)

# -- task 6: find_leaks ---------------------------------------------------------------------------------

answers.wrong(
    "only what is in the books is looked at", task=6,
    mistake="an id that somebody holds, but the books do not know, was overlooked",
    edits=[("sorted({*ref_counts, *uses})", "sorted(ref_counts)")],
)
answers.wrong(
    "an id held by two sequences counts once", task=6,
    mistake="an id that two sequences hold was counted once",
    edits=[("Counter(chain.from_iterable(holders))", "Counter(set(chain.from_iterable(holders)))")],
)
answers.wrong(
    "only leaks, not what was freed too early", task=6,
    edits=[("if difference != 0}", "if difference > 0}")],
)
answers.wrong(
    "everything is listed", task=6, mistake="ids without a difference are not listed",
    edits=[(" for key, difference in differences.items() if difference != 0}",
            " for key, difference in differences.items()}")],
)
answers.wrong(
    "holders minus books", task=6,
    edits=[("ref_counts.get(key, 0) - uses[key]", "uses[key] - ref_counts.get(key, 0)")],
)
answers.wrong(
    "an unknown id is a KeyError", task=6,
    edits=[("ref_counts.get(key, 0)", "ref_counts[key]")],
)
answers.wrong(
    "what is held must be lists", task=6,
    edits=[("Counter(chain.from_iterable(holders))", "Counter(sum(holders, []))")],
)
answers.wrong(
    "the holders are gone through twice", task=6,
    mistake="an id that somebody holds, but the books do not know, was overlooked",
    edits=[("sorted({*ref_counts, *uses})", "sorted({*ref_counts, *chain.from_iterable(holders)})")],
)
answers.wrong(
    "the books are changed while they are compared", task=6,
    edits=[("    differences = {key: ref_counts.get(key, 0) - uses[key]",
            "    ref_counts.update({key: ref_counts.get(key, 0) for key in uses})\n"
            "    differences = {key: ref_counts.get(key, 0) - uses[key]")],
)

# -- task 7: compact ------------------------------------------------------------------------------------

answers.wrong(
    "moved in the order in which they are listed", task=7,
    edits=[("in sorted(reservations.items()):", "in reservations.items():")],
)
answers.wrong(
    "what is in its place is moved too", task=7,
    edits=[("        if start != packed:\n", "        if True:\n")],
)
answers.wrong(
    "the right plan, carried out backwards", task=7,
    mistake="a move wrote on slots that a later move still had to read, or that stay",
    edits=[("    return moves\n", "    return moves[::-1]\n")],
)
answers.wrong(
    "the plan is carried out in the books", task=7,
    edits=[("            moves.append((start, packed, size))\n",
            "            moves.append((start, packed, size))\n"
            "            reservations[packed] = reservations.pop(start)\n")],
)
answers.wrong(
    "packed by the holes, not by the reservations", task=7,
    edits=[("        packed += size\n", "        packed = start + size\n")],
)

# -- right answers: other designs -----------------------------------------------------------------------

CELLS = '''
from collections.abc import Callable, Iterable

from minipaged.block_allocator import BlockAllocator
from minipaged.contiguous import Account, ArenaBlocks as GivenArenaBlocks


def reservation(policy, prompt_len, output_len, max_model_len):
    if prompt_len + output_len > max_model_len:
        raise ValueError(f"{prompt_len} and {output_len} do not fit into {max_model_len}")
    power = 1
    while power < output_len:
        power *= 2
    sizes = {"max": max_model_len, "oracle": prompt_len + output_len}
    sizes["pow2"] = max_model_len if prompt_len + power > max_model_len else prompt_len + power
    if policy not in sizes:
        raise ValueError(policy)
    return sizes[policy]


def account(sequences, holes, needed=0):
    slots = []
    for size, now, end in sequences:
        for slot in range(size):
            slots.append("used" if slot < now else "reserved" if slot < end else "internal")
    free = sum(size for _, size in holes)
    fits = any(size >= needed for _, size in holes)
    stuck = 0 < needed <= free and not fits
    counts = [slots.count(name) for name in ("used", "reserved", "internal")]
    return Account(*counts, free if stuck else 0, 0 if stuck else free)


class Arena:
    """One entry per slot: who owns it. Holes are found by looking."""

    def __init__(self, num_slots):
        self.num_slots = num_slots
        self.owners = [None] * num_slots

    @property
    def num_free(self):
        return self.owners.count(None)

    def holes(self):
        holes, slot = [], 0
        while slot < self.num_slots:
            end = slot
            while end < self.num_slots and self.owners[end] is None:
                end += 1
            if end > slot:
                holes.append((slot, end - slot))
            slot = end + 1
        return holes

    def reservations(self):
        return {owner: self.owners.count(owner) for owner in set(self.owners) - {None}}

    def reserve(self, size):
        if size < 1:
            raise ValueError(f"{size} slots")
        for start, hole_size in self.holes():
            if hole_size >= size:
                for slot in range(start, start + size):
                    self.owners[slot] = start
                return start

    def release(self, start):
        if start not in self.owners or start is None:
            raise ValueError(f"nothing begins at {start}")
        for slot, owner in enumerate(self.owners):
            if owner == start:
                self.owners[slot] = None


class Node:
    """A chunk of the buddy system: free, reserved, or two halves."""

    def __init__(self, start, size):
        self.start, self.size, self.halves, self.is_reserved = start, size, None, False

    def leaves(self):
        return [self] if self.halves is None else self.halves[0].leaves() + self.halves[1].leaves()

    def split(self, size):
        if self.size == size:
            self.is_reserved = True
            return
        half = self.size // 2
        self.halves = [Node(self.start, half), Node(self.start + half, half)]
        self.halves[0].split(size)

    def join(self):
        if self.halves is not None:
            for half in self.halves:
                half.join()
            if all(half.halves is None and not half.is_reserved for half in self.halves):
                self.halves = None


class Buddy:
    """A forest of trees, one for each power of two in the number of slots."""

    def __init__(self, num_slots):
        self.num_slots, self.roots, start = num_slots, [], 0
        for digit in reversed(range(num_slots.bit_length())):
            if num_slots >> digit & 1:
                self.roots.append(Node(start, 1 << digit))
                start += 1 << digit

    def leaves(self):
        return [leaf for root in self.roots for leaf in root.leaves()]

    @property
    def num_free(self):
        return sum(size for _, size in self.holes())

    def holes(self):
        return [(leaf.start, leaf.size) for leaf in self.leaves() if not leaf.is_reserved]

    def reservations(self):
        return {leaf.start: leaf.size for leaf in self.leaves() if leaf.is_reserved}

    def reserve(self, size):
        if size < 1:
            raise ValueError(f"{size} slots")
        wanted = 1
        while wanted < size:
            wanted *= 2
        free = [leaf for leaf in self.leaves() if not leaf.is_reserved and leaf.size >= wanted]
        if not free:
            return None
        leaf = min(free, key=lambda leaf: (leaf.size, leaf.start))
        leaf.split(wanted)
        return leaf.start

    def release(self, start):
        reserved = [leaf for leaf in self.leaves() if leaf.is_reserved and leaf.start == start]
        if not reserved:
            raise ValueError(f"nothing begins at {start}")
        reserved[0].is_reserved = False
        for root in self.roots:
            root.join()


def find_leaks(ref_counts, holders):
    differences = dict(ref_counts)
    for held in holders:
        for key in held:
            differences[key] = differences.get(key, 0) - 1
    return {key: n for key, n in differences.items() if n}


def compact(reservations):
    moves = []
    for start in sorted(reservations):
        place = sum(size for other, size in reservations.items() if other < start)
        if place < start:
            moves.append((start, place, reservations[start]))
    return moves


class ArenaBlocks(GivenArenaBlocks):
    def __init__(self, num_blocks, on_reuse=None):
        super().__init__(num_blocks, on_reuse)
        self._arena = Arena(num_blocks)
'''
answers.right("a list of owners, and a tree of halves", source=CELLS)
answers.right(
    "all holes are put together anew", edits=[
        ("        for hole in [hole for hole in self._holes if sum(hole) == start or hole[0] == end]:\n"
         "            self._holes.remove(hole)\n"
         "            start, end = min(start, hole[0]), max(end, sum(hole))\n", ""),
        ("        insort(self._holes, (start, end - start))\n",
         "        joined = []\n"
         "        for first, size in sorted([*self._holes, (start, end - start)]):\n"
         "            if joined and sum(joined[-1]) == first:\n"
         "                joined[-1] = (joined[-1][0], joined[-1][1] + size)\n"
         "            else:\n"
         "                joined.append((first, size))\n"
         "        self._holes = joined\n"),
    ],
)
answers.right(
    "holes are what reservations leave over", edits=[
        ("        return list(self._holes)\n",
         "        holes, end = [], 0\n"
         "        for start, size in [*sorted(self._sizes.items()), (self.num_slots, 0)]:\n"
         "            if start > end:\n"
         "                holes.append((end, start - end))\n"
         "            end = start + size\n"
         "        return holes\n"),
        ("        for index, (start, hole_size) in enumerate(self._holes):\n",
         "        for start, hole_size in self.holes():\n"),
        ("                rest = (start + size, hole_size - size)\n", ""),
        ("                self._holes[index : index + 1] = [rest] if hole_size > size else []\n", ""),
        ("        end = start + self._sizes.pop(start)\n", "        del self._sizes[start]\n"),
        ("        for hole in [hole for hole in self._holes if sum(hole) == start or hole[0] == end]:\n"
         "            self._holes.remove(hole)\n"
         "            start, end = min(start, hole[0]), max(end, sum(hole))\n", ""),
        ("        insort(self._holes, (start, end - start))\n", ""),
    ],
)
answers.right(
    "buddies by recursion", edits=[
        ("        while (buddy := start ^ chunk) in self._free[chunk]:\n"
         "            self._free[chunk].remove(buddy)\n"
         "            start, chunk = min(start, buddy), 2 * chunk\n"
         "        self._free[chunk].add(start)\n",
         "        self._give_back(start, chunk)\n\n"
         "    def _give_back(self, start, chunk):\n"
         "        is_left = start // chunk % 2 == 0\n"
         "        buddy = start + chunk if is_left else start - chunk\n"
         "        if buddy not in self._free.get(chunk, set()):\n"
         "            self._free[chunk].add(start)\n"
         "        else:\n"
         "            self._free[chunk].discard(buddy)\n"
         "            self._give_back(start if is_left else buddy, 2 * chunk)\n"),
    ],
)
answers.right(
    "moves recorded by who moves how far", edits=[
        ("    moves = []\n    packed = 0\n", "    moves = []\n    packed = gap = end = 0\n"),
        ("        if start != packed:\n            moves.append((start, packed, size))\n",
         "        gap += start - end\n        end = start + size\n"
         "        if gap:\n            moves.append((start, start - gap, size))\n"),
    ],
)
answers.right(
    "the account by subtraction", edits=[
        ("        reserved += used_in_the_end - num_tokens\n", "        internal += size\n"),
        ("        internal += size - used_in_the_end\n",
         "        reserved += used_in_the_end\n        internal -= used_in_the_end\n"),
        ("    sizes = [size for _, size in holes]\n",
         "    reserved -= used\n    sizes = [size for _, size in holes]\n"),
    ],
)

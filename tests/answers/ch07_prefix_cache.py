"""Wrong answers that chapter 7's grader must reject, and right ones that it must accept."""

from __future__ import annotations

from minipaged.course.answers import Answers

answers = Answers("ch07")

NO_DOMAIN = "the values lack their domains: salt \"x\" and adapter \"x\" are the same then"
EMPTY_IS_NONE = "an empty text was taken for None: a user with an empty salt shares with those who have none"
NO_PARENT = "the parent is not in the key: a block behind another beginning is taken for this one"
NO_EXTRA = "the extra keys are not in the key: users with different salts share blocks"
NO_ORDER = "the order of the tokens is not in the key"
RUN_TOGETHER = "the tokens run together: [1, 23] and [12, 3] have the same key"
ONE_BYTE = "only the lowest byte of each token is in the key"
WEAK = "Python's hash() is not sha256: 0 and 2**61 - 1 have the same hash"
UNQUOTED = "the extra keys run together: one salt can be written so that it looks like another with an adapter"
HALF_FULL = "a block that is not full has a key too"
LAST_FULL = "the last full block has no key"
NO_CHAIN = "each block's parent is ROOT_KEY: the keys are no chain"
LAST_WINS = "the second of two identical blocks took the key over: the first one stays"
OLD_KEY_STAYS = "a block is still found under the key it had before"
OTHER_FORGOTTEN = "forgetting a block without a key took the key of another one"
SAME_DICT = "the cache's own dict was given out: changing it changes the cache"
ALL_FOUND = "every block was found, and no token is left to compute"
BEHIND_A_HOLE = "a block behind a missing one was taken for a hit: a match is a run from the start"
TOO_FEW = "one block too few was found: a prompt of 9 tokens with blocks of 4 leaves one token beside two blocks"
MINUS_ONE = "0 tokens: (0 - 1) // 4 is -1, and keys[:-1] is all but the last"
BLOCK_ZERO = "block 0 was taken for no block"
NOT_WIRED = "a block that holds something else by now can still be found: the allocator does not tell the cache"
TOO_SOON = "a released block was forgotten: it can be found until it is handed out again"
HEAD_FIRST = "the blocks were released head first: a sequence's end must be evicted before its beginning"
FRESH_FIRST = "fresh blocks were taken before the hits were secured, and one of the hits was among them"
USED_HITS = "hits in use were counted as needed: one user more takes no free block"
PARTLY = "hits were taken before OutOfBlocks, and kept: check first, and count free hits as needed"
NOT_A_USER = "a hit in use got no user more: it will be freed under this request"
ONE_NODE_EACH = "one node for each block: a node is a run of blocks, split only where two sequences part"
TREE_LAST_WINS = "the second of two identical blocks took the first one's place"
LOST_BELOW = "what was below a node is lost when the node is split"
EVICTS_LRU = "the block that was used longest ago was evicted, and not the one that is used again latest"
SOONEST = "the block that is used again soonest was evicted"

TAGGED = "return tuple((domain, value) for domain, value in tagged if value is not None)"
TOKENS = 'tokens = array("q", token_ids).tobytes()'
PARENT = "digest = hashlib.sha256(parent)"
EXTRA = "        digest.update(json.dumps(extra).encode())\n".replace("        ", "    ")
ENDS = "for end in range(block_size, len(token_ids) + 1, block_size):"
LIMIT = "keys[: max(num_tokens - 1, 0) // self.block_size]"
MISS = """            if block_id is None:
                break
"""
FORGET_OLD = "            self.forget(block_id)\n"
FORGET = """        key = self._key_of.pop(block_id, None)
        if key is not None:
            del self._block_of[key]
"""
WIRED = "BlockAllocator(num_blocks, on_reuse=self.cache.forget)"
NEEDED = "needed = num_revived + num_new"
CHECK = """        if needed > self.allocator.num_free:
            raise OutOfBlocks(needed, self.allocator.num_free, self.allocator.num_blocks)
"""
SECURE = """        for block_id in hits:
            if self.allocator.ref_count(block_id) == 0:
                self.allocator.revive(block_id)
            else:
                self.allocator.share(block_id)
"""
TAKEN = "        return [*hits, *self.allocator.allocate_many(num_new)]\n"
RELEASE = "self.allocator.free_many(reversed(block_ids))"
EVICT = """            _, _, block_id = heapq.heappop(heap)
            cached.remove(block_id)
"""
EVICT_LIVE = """            while (block_id := heapq.heappop(heap)[2]) not in cached or block_id in prompt:
                pass
            cached.remove(block_id)
"""
PUSH = "heapq.heappush(heap, (-use, -place, block_id))"

# -- task 1
answers.wrong("no domains", task=1, mistake=NO_DOMAIN, edits=[(TAGGED, "return tuple(value for _, value in tagged if value is not None)")])
answers.wrong("leaves out what is false", task=1, mistake=EMPTY_IS_NONE, edits=[(TAGGED, TAGGED.replace(" is not None", ""))])
answers.wrong("keeps None", task=1, edits=[(TAGGED, "return tagged")])
answers.wrong("a dict's items, as a list", task=1, edits=[(TAGGED, "return [(domain, value) for domain, value in tagged if value is not None]")])
answers.wrong(
    "the adapter first", task=1, mistake="the salt stands first",
    edits=[('(("cache_salt", cache_salt), ("adapter", adapter))', '(("adapter", adapter), ("cache_salt", cache_salt))')],
)

# -- task 2
answers.wrong("same tokens, same key", task=2, mistake=NO_PARENT, edits=[(PARENT, "digest = hashlib.sha256()")])
answers.wrong("salts do not separate", task=2, mistake=NO_EXTRA, edits=[(EXTRA, "")])
answers.wrong("sorted tokens", task=2, mistake=NO_ORDER, edits=[(TOKENS, 'tokens = array("q", sorted(token_ids)).tobytes()')])
answers.wrong("digits one after the other", task=2, mistake=RUN_TOGETHER, edits=[(TOKENS, 'tokens = "".join(map(str, token_ids)).encode()')])
answers.wrong("tokens modulo 256", task=2, mistake=ONE_BYTE, edits=[(TOKENS, "tokens = bytes(token % 256 for token in token_ids)")])
answers.wrong("tokens of four bytes", task=2, edits=[(TOKENS, 'tokens = b"".join((token % 2**32).to_bytes(4, "little") for token in token_ids)')])
answers.wrong(
    "Python's hash", task=2, mistake=WEAK,
    edits=[(TOKENS, "tokens = hash((parent, tuple(token_ids), extra)).to_bytes(8, 'little', signed=True)")],
)
answers.wrong("the digest as text", task=2, edits=[("    return digest.digest()", "    return digest.hexdigest()")])
answers.wrong("only half of the digest", task=2, edits=[("    return digest.digest()", "    return digest.digest()[:16]")])
answers.wrong(
    "only the values of the extra keys", task=2, mistake=NO_EXTRA,
    edits=[("json.dumps(extra)", "json.dumps([value for _, value in extra])")],
)
answers.wrong(
    "the extra keys run together", task=2, mistake=UNQUOTED,
    edits=[("json.dumps(extra)", '"".join(domain + value for domain, value in extra)')],
)
answers.wrong(
    "quotes without escapes", task=2, mistake=UNQUOTED,
    edits=[("json.dumps(extra)", "('{' + ', '.join(f'\"{domain}\": \"{value}\"' for domain, value in extra) + '}')")],
)
answers.wrong("a key for the rest", task=2, mistake=HALF_FULL, edits=[(ENDS, "for end in range(block_size, len(token_ids) + block_size, block_size):")])
answers.wrong("no key for a block that ends the prompt", task=2, mistake=LAST_FULL, edits=[(ENDS, "for end in range(block_size, len(token_ids), block_size):")])
answers.wrong("no chain", task=2, mistake=NO_CHAIN, edits=[("parent = keys[-1] if keys else ROOT_KEY", "parent = ROOT_KEY")])
answers.wrong(
    "the parent is always the first block", task=2,
    edits=[("parent = keys[-1] if keys else ROOT_KEY", "parent = keys[0] if keys else ROOT_KEY")],
)
answers.wrong("block_keys forgets the extra keys", task=2, mistake=NO_EXTRA, edits=[("token_ids[end - block_size : end], extra))", "token_ids[end - block_size : end]))")])
answers.wrong("extra keys in the first block only, tokens of all before in each", task=2, edits=[("token_ids[end - block_size : end], extra))", "token_ids[:end], extra if end == block_size else ()))")])

# -- task 3
answers.wrong("the last one wins", task=3, mistake=LAST_WINS, edits=[("        if key not in self._block_of:\n", "        if True:\n")])
answers.wrong("the old key stays", task=3, mistake=OLD_KEY_STAYS, edits=[(FORGET_OLD, "")])
answers.wrong(
    "forgets before it looks whether the key is taken", task=3,
    edits=[(FORGET_OLD, ""), ("        if key not in self._block_of:\n", "        self.forget(block_id)\n        if key not in self._block_of:\n")],
)
answers.wrong(
    "a duplicate gets a key too", task=3, mistake="a block has a key that another block is found under",
    edits=[("        if key not in self._block_of:\n", "        if key in self._block_of:\n            self._key_of[block_id] = key\n        else:\n")],
)
answers.wrong(
    "forgets the other one's key", task=3, mistake=OTHER_FORGOTTEN,
    edits=[
        ("        if key not in self._block_of:\n", "        if key in self._block_of:\n            self._dup[block_id] = key\n        else:\n"),
        ("        self._key_of: dict[int, bytes] = {}\n", "        self._key_of: dict[int, bytes] = {}\n        self._dup: dict[int, bytes] = {}\n"),
        ("key = self._key_of.pop(block_id, None)", "key = self._key_of.pop(block_id, None) or self._dup.pop(block_id, None)"),
        ("            del self._block_of[key]\n", "            self._block_of.pop(key, None)\n"),
    ],
)
answers.wrong("a block without a key is an error", task=3, edits=[("self._key_of.pop(block_id, None)", "self._key_of.pop(block_id)")])
answers.wrong(
    "only one of the maps forgets", task=3, mistake="the block still has its key: only one of the two maps was changed",
    edits=[("key = self._key_of.pop(block_id, None)", "key = self._key_of.get(block_id)"), ("            del self._block_of[key]\n", "            self._block_of.pop(key, None)\n")],
)
answers.wrong("the key stays taken", task=3, edits=[("            del self._block_of[key]\n", "            pass\n")])
answers.wrong("gives out its own dict", task=3, mistake=SAME_DICT, edits=[("return dict(self._block_of)", "return self._block_of")])
answers.wrong(
    "the maps belong to the class", task=3,
    edits=[
        ("        self._block_of: dict[bytes, int] = {}\n        self._key_of: dict[int, bytes] = {}\n", ""),
        ("    def __init__(self, block_size: int) -> None:\n        \"\"\"An empty cache", "    _block_of, _key_of = {}, {}\n\n    def __init__(self, block_size: int) -> None:\n        \"\"\"An empty cache"),
    ],
)

# -- task 4
answers.wrong("all of it is found", task=4, mistake=ALL_FOUND, edits=[(LIMIT, "keys[: num_tokens // self.block_size]")])
answers.wrong("always a whole block is computed", task=4, mistake=TOO_FEW, edits=[(LIMIT, "keys[: max(num_tokens // self.block_size - 1, 0)]")])
answers.wrong("minus one for no token", task=4, mistake=MINUS_ONE, edits=[(LIMIT, "keys[: (num_tokens - 1) // self.block_size]")])
answers.wrong("goes on behind a hole", task=4, mistake=BEHIND_A_HOLE, edits=[(MISS, MISS.replace("break", "continue"))])
answers.wrong("block 0 is no block", task=4, mistake=BLOCK_ZERO, edits=[(MISS, MISS.replace("block_id is None", "not block_id"))])
answers.wrong(
    "the hits are forgotten: found once only", task=4,
    edits=[("            hits.append(block_id)\n", "            hits.append(block_id)\n        for block_id in hits:\n            self.forget(block_id)\n")],
)
answers.wrong("no limit at all", task=4, mistake=ALL_FOUND, edits=[(LIMIT, "keys if num_tokens else []")])

# -- task 5
answers.wrong("the allocator tells nobody", task=5, mistake=NOT_WIRED, edits=[(WIRED, "BlockAllocator(num_blocks)")])
answers.wrong(
    "forgotten when it is released", task=5, mistake=TOO_SOON,
    edits=[(RELEASE, RELEASE + "\n        for block_id in block_ids:\n            if self.allocator.ref_count(block_id) == 0:\n                self.cache.forget(block_id)")],
)
answers.wrong("released head first", task=5, mistake=HEAD_FIRST, edits=[(RELEASE, "self.allocator.free_many(block_ids)")])
answers.wrong(
    "fresh blocks first, then whatever the hits are by then", task=5, mistake=FRESH_FIRST,
    edits=[(SECURE + TAKEN, "        fresh = self.allocator.allocate_many(num_new)\n" + SECURE + "        return [*hits, *fresh]\n")],
)
answers.wrong(
    "fresh blocks first, then revive", task=5, mistake=FRESH_FIRST,
    edits=[
        ("        num_revived = sum(", "        free = [block_id for block_id in hits if self.allocator.ref_count(block_id) == 0]\n        num_revived = sum("),
        (SECURE + TAKEN, "        fresh = self.allocator.allocate_many(num_new)\n" + SECURE.replace("if self.allocator.ref_count(block_id) == 0:", "if block_id in free:") + "        return [*hits, *fresh]\n"),
    ],
)
answers.wrong("free hits cost nothing", task=5, mistake=PARTLY, edits=[(NEEDED, "needed = num_new")])
answers.wrong("all hits cost a block", task=5, mistake=USED_HITS, edits=[(NEEDED, "needed = len(hits) + num_new")])
answers.wrong("checks when the hits are taken", task=5, mistake=PARTLY, edits=[(CHECK, "")])
answers.wrong(
    "a used hit is just used", task=5, mistake=NOT_A_USER,
    edits=[(SECURE, "        for block_id in hits:\n            if self.allocator.ref_count(block_id) == 0:\n                self.allocator.revive(block_id)\n")],
)
answers.wrong("every hit is revived", task=5, edits=[(SECURE, "        for block_id in hits:\n            self.allocator.revive(block_id)\n")])
answers.wrong("fresh ones in front", task=5, edits=[(TAKEN, "        return [*self.allocator.allocate_many(num_new), *hits]\n")])
answers.wrong(
    "adds to the caller's list", task=5,
    edits=[(TAKEN, "        hits += self.allocator.allocate_many(num_new)\n        return hits\n")],
)
answers.wrong("hits lose their keys", task=5, edits=[("                self.allocator.revive(block_id)\n", "                self.allocator.revive(block_id)\n                self.cache.forget(block_id)\n")])
answers.wrong(
    "evicts everything at once when the pool is full", task=5,
    edits=[(TAKEN, "        if num_new > self.allocator.num_free - self.cache.num_blocks:\n            for block_id in self.allocator.free_blocks():\n                self.cache.forget(block_id)\n" + TAKEN)],
)

# -- task 6
answers.wrong(
    "a node for each block", task=6, mistake=ONE_NODE_EACH,
    edits=[("                node.children[rest[0]] = _Node(rest, list(block_ids[num_found : len(chunks)]))\n                self._num_nodes += 1\n",
            "                for chunk, block_id in zip(rest, block_ids[num_found:]):\n                    node.children[chunk] = _Node([chunk], [block_id])\n                    node = node.children[chunk]\n                    self._num_nodes += 1\n")],
)
answers.wrong(
    "the last one's blocks take the place", task=6, mistake=TREE_LAST_WINS,
    edits=[("            num_found += common\n", "            child.block_ids[:common] = block_ids[num_found : num_found + common]\n            num_found += common\n")],
)
answers.wrong("a split loses what was below", task=6, mistake=LOST_BELOW, edits=[("        lower.children = node.children\n", "")])
answers.wrong("a match takes the whole node", task=6, edits=[("            hits += child.block_ids[:common]\n", "            hits += child.block_ids\n")])
answers.wrong("the tree leaves no token", task=6, edits=[("self._cut(token_ids, max(len(token_ids) - 1, 0) // self.block_size)", "self._cut(token_ids, len(token_ids) // self.block_size)")])
answers.wrong("says what it added, not what it found", task=6, edits=[("        return num_found\n        ### END", "        return len(chunks) - num_found\n        ### END")])
answers.wrong(
    "a path that parts in the middle of a node is given up", task=6,
    edits=[("                self._split(child, common)\n", "                return num_found + common\n")],
)

# -- task 7
answers.wrong(
    "evicts the least recently used", task=7, mistake=EVICTS_LRU,
    edits=[(PUSH, "heapq.heappush(heap, (len(heap), -place, block_id))"), (EVICT, EVICT_LIVE)],
)
answers.wrong(
    "evicts what is needed soonest", task=7, mistake=SOONEST,
    edits=[(PUSH, "heapq.heappush(heap, (use, -place, block_id))"), (EVICT, EVICT_LIVE)],
)
answers.wrong(
    "the beginning goes first", task=7, mistake="the beginning was evicted before the end",
    edits=[(PUSH, "heapq.heappush(heap, (-use, place, block_id))")],
)
answers.wrong("never evicts", task=7, edits=[("for _ in range(num_too_many):", "for _ in range(0):")])
answers.wrong(
    "never again is taken for very soon", task=7,
    edits=[("    never = len(prompts)\n", "    never = -1\n"), (EVICT, EVICT_LIVE)],
)
answers.wrong(
    "the cache starts anew when it is full", task=7,
    edits=[("        for _ in range(num_too_many):\n", "        if num_too_many > 0:\n            cached, heap, num_too_many = set(), [], 0\n        for _ in range(num_too_many):\n")],
)

# -- found by trying to break the grader: arguments changed, things shared, cases at the edge

answers.wrong("strips the values", task=1, edits=[
    ("    return tuple((domain, value) for domain, value in tagged if value is not None)\n",
     "    return tuple((d, v.strip()) for d, v in tagged if v is not None)\n"),
])
answers.wrong("takes the text None for None", task=1, edits=[
    ("    return tuple((domain, value) for domain, value in tagged if value is not None)\n",
     "    return tuple((d, v) for d, v in tagged if v not in (None, 'None'))\n"),
])
answers.wrong("one of two equal values", task=1, edits=[
    ("    return tuple((domain, value) for domain, value in tagged if value is not None)\n",
     "    return tuple({v: (d, v) for d, v in tagged if v is not None}.values())\n"),
])
answers.wrong("tokens as floats", task=2, edits=[
    ('    tokens = array("q", token_ids).tobytes()\n',
     '    tokens = array("d", token_ids).tobytes()\n'),
])
answers.wrong("each token once", task=2, edits=[
    ('    tokens = array("q", token_ids).tobytes()\n',
     '    tokens = array("q", dict.fromkeys(token_ids)).tobytes()\n'),
])
answers.wrong("pairs joined with bars", task=2, edits=[
    ("    digest.update(json.dumps(extra).encode())\n",
     '    digest.update("|".join(f"{d}{v}" for d, v in extra).encode())\n'),
])
answers.wrong("texts joined with zero bytes", task=2, edits=[
    ("    digest.update(json.dumps(extra).encode())\n",
     '    digest.update("\\0".join(x for p in extra for x in p).encode())\n'),
])
answers.wrong("pairs joined with equals signs", task=2, edits=[
    ("    digest.update(json.dumps(extra).encode())\n",
     '    digest.update("=".join(f"{d}{v}" for d, v in extra).encode())\n'),
])
answers.wrong("letters that are not ASCII become question marks", task=2, edits=[
    ("    digest.update(json.dumps(extra).encode())\n",
     '    digest.update(json.dumps(extra, ensure_ascii=False).encode("ascii", "replace"))\n'),
])
answers.wrong("takes the tokens out of the caller's list", task=2, edits=[
    ('''    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = keys[-1] if keys else ROOT_KEY
        keys.append(block_key(parent, token_ids[end - block_size : end], extra))
''',
     '''    while isinstance(token_ids, list) and len(token_ids) >= block_size:
        keys.append(block_key(keys[-1] if keys else ROOT_KEY, token_ids[:block_size], extra))
        del token_ids[:block_size]
    if not isinstance(token_ids, list):
        for end in range(block_size, len(token_ids) + 1, block_size):
            keys.append(block_key(keys[-1] if keys else ROOT_KEY, token_ids[end - block_size : end], extra))
'''),
])
answers.wrong("one list for all matches", task=4, edits=[
    ('''            hits.append(block_id)
        return hits
''',
     '''            hits.append(block_id)
        self._hits = getattr(self, '_hits', [])
        self._hits[:] = hits
        return self._hits
'''),
])
answers.wrong("returns the list of hits itself", task=5, edits=[
    ("                self.allocator.share(block_id)\n",
     '''                self.allocator.share(block_id)
        if not num_new:
            return hits
'''),
])
answers.wrong("takes and gives back, in another order", task=5, edits=[
    ('''        num_revived = sum(self.allocator.ref_count(block_id) == 0 for block_id in hits)
        needed = num_revived + num_new
        if needed > self.allocator.num_free:
            raise OutOfBlocks(needed, self.allocator.num_free, self.allocator.num_blocks)
        # Hits first: a free hit stands in the queue like any other free block, and may be its head. A fresh
        # block taken before could be that very hit, about to be overwritten.
''',
     ''''''),
    ("        return [*hits, *self.allocator.allocate_many(num_new)]\n",
     '''        try:
            return [*hits, *self.allocator.allocate_many(num_new)]
        except OutOfBlocks:
            n = self.allocator.num_free
            self.allocator.free_many(reversed(hits))
            raise OutOfBlocks(num_new + self.allocator.num_free - n, self.allocator.num_free, self.allocator.num_blocks)
'''),
])
answers.wrong("releases by id", task=5, edits=[
    ("        self.allocator.free_many(reversed(block_ids))\n",
     "        self.allocator.free_many(sorted(block_ids, reverse=True))\n"),
])
answers.wrong("turns the caller's list round", task=5, edits=[
    ("        self.allocator.free_many(reversed(block_ids))\n",
     '''        if isinstance(block_ids, list):
            block_ids.reverse()
            self.allocator.free_many(block_ids)
        else:
            self.allocator.free_many(reversed(block_ids))
'''),
])
answers.wrong("releases blocks without a key first", task=5, edits=[
    ("        self.allocator.free_many(reversed(block_ids))\n",
     '''        self.allocator.free_many([b for b in reversed(block_ids) if self.cache.key(b) is None])
        self.allocator.free_many([b for b in reversed(block_ids) if self.cache.key(b) is not None])
'''),
])
answers.wrong("splits where nobody parts", task=6, edits=[
    ("            if common < min(len(child.chunks), len(rest)):\n",
     "            if common < len(child.chunks):\n"),
])
answers.wrong("keeps the list that was passed in", task=6, edits=[
    ("                node.children[rest[0]] = _Node(rest, list(block_ids[num_found : len(chunks)]))\n",
     "                node.children[rest[0]] = _Node(rest, block_ids if not num_found else list(block_ids[num_found:]))\n"),
])
answers.wrong("one list for all matches of the tree", task=6, edits=[
    ('''            node = child
        return hits
''',
     '''            node = child
        self._last = getattr(self, '_last', [])
        self._last[:] = hits
        return self._last
'''),
])
answers.wrong("of equals the highest id goes", task=7, edits=[
    ("            heapq.heappush(heap, (-use, -place, block_id))\n",
     "            heapq.heappush(heap, (-use, -block_id, block_id))\n"),
])

answers.right(
    "keys of nested texts, one map and a search, a pool that plans first",
    source='''
import hashlib
from collections import deque

from minipaged.block_allocator import BlockAllocator
from minipaged.errors import OutOfBlocks


def extra_keys(cache_salt=None, adapter=None):
    found = {"cache_salt": cache_salt, "adapter": adapter}
    for domain in [name for name, value in found.items() if value is None]:
        del found[domain]
    return tuple(found.items())


def block_key(parent, token_ids, extra=()):
    return hashlib.sha256(repr((bytes(parent), tuple(token_ids), tuple(extra))).encode()).digest()


def block_keys(token_ids, block_size, extra=()):
    parent, keys, rest = bytes(32), [], list(token_ids)
    while len(rest) >= block_size:
        block, rest = rest[:block_size], rest[block_size:]
        parent = block_key(parent, block, extra)
        keys.append(parent)
    return keys


class PrefixCache:
    def __init__(self, block_size):
        self.block_size, self.rows = block_size, []

    num_blocks = property(lambda self: len(self.rows))

    def entries(self):
        return {key: block for key, block in self.rows}

    def key(self, block_id):
        return next((key for key, block in self.rows if block == block_id), None)

    def match(self, keys, num_tokens):
        found, hits = self.entries(), []
        for index, key in enumerate(keys):
            if key not in found or (index + 1) * self.block_size >= num_tokens:
                return hits
            hits.append(found[key])
        return hits

    def publish(self, block_id, key):
        if key in self.entries():
            return
        self.rows = [row for row in self.rows if row[1] != block_id] + [(key, block_id)]

    def forget(self, block_id):
        self.rows = [row for row in self.rows if row[1] != block_id]


class PrefixPool:
    def __init__(self, num_blocks, block_size):
        self.cache = PrefixCache(block_size)
        self.allocator = BlockAllocator(num_blocks, lambda block: self.cache.forget(block))

    def take(self, hits, num_new):
        plan = [("share" if self.allocator.ref_count(block) else "revive", block) for block in hits]
        need = num_new + len([1 for what, _ in plan if what == "revive"])
        if self.allocator.num_free < need:
            raise OutOfBlocks(need, self.allocator.num_free, self.allocator.num_blocks)
        for what, block in plan:
            getattr(self.allocator, what)(block)
        blocks = list(hits)
        while len(blocks) < len(hits) + num_new:
            blocks.append(self.allocator.allocate())
        return blocks

    def release(self, block_ids):
        waiting = deque(block_ids)
        while waiting:
            self.allocator.free(waiting.pop())


class RadixTree:
    """Nodes are lists [tokens, blocks, children]; children is a plain list."""

    def __init__(self, block_size):
        self.block_size, self.root = block_size, [[], [], []]

    @property
    def num_nodes(self):
        waiting, count = list(self.root[2]), 0
        while waiting:
            node = waiting.pop()
            count += 1
            waiting += node[2]
        return count

    def _walk(self, tokens, num_blocks):
        """The node where the way ends, how many of its blocks were passed, and the blocks on the way."""
        node, used, blocks = self.root, 0, []
        for index in range(num_blocks):
            block = list(tokens[index * self.block_size : (index + 1) * self.block_size])
            if used == len(node[1]):
                child = next((one for one in node[2] if one[0][: self.block_size] == block), None)
                if child is None:
                    break
                node, used = child, 0
            elif node[0][used * self.block_size : (used + 1) * self.block_size] != block:
                break
            blocks.append(node[1][used])
            used += 1
        return node, used, blocks

    def insert(self, token_ids, block_ids):
        num_blocks = len(token_ids) // self.block_size
        node, used, blocks = self._walk(token_ids, num_blocks)
        if len(blocks) == num_blocks:
            return num_blocks
        if used < len(node[1]):
            at = used * self.block_size
            node[2] = [[node[0][at:], node[1][used:], node[2]]]
            node[0], node[1] = node[0][:at], node[1][:used]
        rest = list(token_ids[len(blocks) * self.block_size : num_blocks * self.block_size])
        node[2].append([rest, list(block_ids[len(blocks) : num_blocks]), []])
        return len(blocks)

    def match(self, token_ids):
        return self._walk(token_ids, max(0, len(token_ids) - 1) // self.block_size)[2]


def clairvoyant_hits(prompts, num_blocks):
    cached, hits = {}, 0
    for number, prompt in enumerate(prompts):
        for block in prompt:
            if block not in cached:
                break
            hits += 1
        for place, block in enumerate(prompt):
            later = (other for other in range(number + 1, len(prompts)) if block in prompts[other])
            cached[block] = (next(later, len(prompts)), place)
        while len(cached) > num_blocks:
            del cached[max((block for block in cached if block not in prompt), key=cached.get)]
    return hits
''',
)
answers.right(
    "64-bit tokens by hand, keys in a list of blocks, splits by rebuilding",
    source='''
import json
from hashlib import sha256

from minipaged import BlockAllocator, OutOfBlocks
from minipaged.prefix_cache import ROOT_KEY


def extra_keys(cache_salt=None, adapter=None):
    extra = ()
    if cache_salt is not None:
        extra += (("cache_salt", cache_salt),)
    if adapter is not None:
        extra += (("adapter", adapter),)
    return extra


def block_key(parent, token_ids, extra=()):
    message = json.dumps({"parent": parent.hex(), "extra": [list(pair) for pair in extra]}).encode()
    for token in token_ids:
        message += token.to_bytes(16, "big")
    return sha256(message).digest()


def block_keys(token_ids, block_size, extra=()):
    if len(token_ids) < block_size:
        return []
    last_full = len(token_ids) // block_size * block_size
    before = block_keys(token_ids[: last_full - block_size], block_size, extra)
    parent = before[-1] if before else ROOT_KEY
    return [*before, block_key(parent, token_ids[last_full - block_size : last_full], extra)]


class PrefixCache:
    """A block's key under its id, with a second map that may lag behind: an entry counts if both agree."""

    def __init__(self, block_size):
        self.block_size = block_size
        self.keys, self.blocks = {}, {}

    def _find(self, key):
        block = self.blocks.get(key)
        return block if block is not None and self.keys.get(block) == key else None

    @property
    def num_blocks(self):
        return len(self.keys)

    def entries(self):
        return {key: block for block, key in self.keys.items()}

    def key(self, block_id):
        return self.keys[block_id] if block_id in self.keys else None

    def match(self, keys, num_tokens):
        run = []
        while len(run) < len(keys) and num_tokens > (len(run) + 1) * self.block_size:
            block = self._find(keys[len(run)])
            if block is None:
                break
            run += [block]
        return run

    def publish(self, block_id, key):
        if self._find(key) is None:
            self.keys[block_id] = key
            self.blocks[key] = block_id

    def forget(self, block_id):
        if block_id in self.keys:
            del self.keys[block_id]


class PrefixPool:
    def __init__(self, num_blocks, block_size):
        self.cache = PrefixCache(block_size)
        self.allocator = BlockAllocator(num_blocks, self.cache.forget)

    def take(self, hits, num_new):
        free_hits = {block for block in hits if not self.allocator.ref_count(block)}
        free, total = self.allocator.num_free, self.allocator.num_blocks
        if free - len(free_hits) < num_new:
            raise OutOfBlocks(needed=len(free_hits) + num_new, free=free, total=total)
        for block in hits:
            (self.allocator.revive if block in free_hits else self.allocator.share)(block)
        return list(hits) + self.allocator.allocate_many(num_new)

    def release(self, block_ids):
        self.allocator.free_many(list(block_ids)[::-1])


class RadixTree:
    """All sequences as a whole; the nodes are counted from where they part."""

    def __init__(self, block_size):
        self.block_size, self.block_of = block_size, {}

    def _beginnings(self, tokens, num_blocks):
        return [tuple(tokens[: end * self.block_size]) for end in range(1, num_blocks + 1)]

    @property
    def num_nodes(self):
        children = {}
        for beginning in self.block_of:
            children.setdefault(beginning[: -self.block_size], []).append(beginning)
        return sum(len(found) for before, found in children.items() if len(found) > 1 or not before)

    def insert(self, token_ids, block_ids):
        found = 0
        for beginning, block in zip(self._beginnings(token_ids, len(token_ids) // self.block_size), block_ids):
            found += beginning in self.block_of
            self.block_of.setdefault(beginning, block)
        return found

    def match(self, token_ids):
        hits = []
        for beginning in self._beginnings(token_ids, max(len(token_ids) - 1, 0) // self.block_size):
            if beginning not in self.block_of:
                break
            hits.append(self.block_of[beginning])
        return hits


def clairvoyant_hits(prompts, num_blocks):
    uses = {}
    for number, prompt in enumerate(prompts):
        for block in prompt:
            uses.setdefault(block, []).append(number)
    cached, hits = set(), 0
    for number, prompt in enumerate(prompts):
        run = 0
        while run < len(prompt) and prompt[run] in cached:
            run += 1
        hits += run
        rank = {}
        for block in cached - set(prompt):
            later = [use for use in uses[block] if use > number]
            place = prompts[uses[block][0]].index(block)
            rank[block] = (later[0] if later else float("inf"), place)
        cached |= set(prompt)
        for block in sorted(rank, key=rank.get, reverse=True)[: max(0, len(cached) - num_blocks)]:
            cached.remove(block)
    return hits
''',
)
answers.right(
    "BLAKE2 for the tokens inside sha256, setdefault, and a list comprehension for the hits",
    edits=[
        (TOKENS, 'tokens = b"".join(int(token).to_bytes(8, "big") for token in token_ids)'),
        ("json.dumps(extra)", 'repr([hashlib.blake2b(text.encode()).digest() for pair in extra for text in pair])'),
        (SECURE + TAKEN, "        secured = [(self.allocator.share if self.allocator.ref_count(b) else self.allocator.revive)(b) or b for b in hits]\n        return secured + self.allocator.allocate_many(num_new)\n"),
        (ENDS, "for end in [block_size * (number + 1) for number in range(len(token_ids) // block_size)]:"),
        (RELEASE, "for block_id in block_ids[::-1]:\n            self.allocator.free(block_id)"),
        (FORGET, "        if block_id in self._key_of:\n            self._block_of.pop(self._key_of.pop(block_id))\n"),
    ],
)

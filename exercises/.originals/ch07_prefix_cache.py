"""Chapter 7: the prefix cache.

You write what finds blocks that hold the beginning of a prompt already: a key for every full block, which
depends on the block's tokens and on all tokens before them; `PrefixCache`, the map from keys to blocks; and
`PrefixPool`, which joins it to a pool of blocks so that the least recently used block is overwritten first.
Every function has its specification in its docstring, and steps to follow; `raise NotImplementedError` is
where your code goes.

The pool's allocator is given (chapter 3; the package's own is used here, so nothing of yours has to be
finished). `PrefixPool` calls these of its methods: `num_free`, `num_blocks`, `ref_count(block_id)`,
`share(block_id)`, `revive(block_id)`, `allocate_many(n)`, `free_many(block_ids)`.

`minipaged check ch07` grades this file, `minipaged hint ch07` helps, and
`minipaged demo --use exercises:ch07` serves a real model with your `PrefixCache`.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from array import array
from collections.abc import Sequence

from minipaged.block_allocator import BlockAllocator
from minipaged.errors import OutOfBlocks
from minipaged.prefix_cache import ROOT_KEY  # 32 zero bytes, the parent of a first block


def extra_keys(cache_salt: str | None = None, adapter: str | None = None) -> tuple[tuple[str, str], ...]:
    """What must be equal besides the tokens before two requests may share a block.

    cache_salt: requests share only with those of the same salt, so users can be kept apart. adapter: the name
    of a fine-tuned variant, whose K and V differ. Returns pairs of a domain and its value, ("cache_salt", …)
    before ("adapter", …), without those that are None. An empty text is a value like any other.

    >>> extra_keys(), extra_keys(adapter="x"), extra_keys("y", "x")
    ((), (('adapter', 'x'),), (('cache_salt', 'y'), ('adapter', 'x')))
    """
    # Task 1 ★ what else must be equal (5 points, about 5 minutes)
    # 1. Pair each value with the name of its domain, so that salt "x" is not adapter "x".
    # 2. Leave out what is None, and only that.
    raise NotImplementedError("ch07_prefix_cache, task 1: what else must be equal")


def block_key(parent: bytes, token_ids: Sequence[int], extra: tuple[tuple[str, str], ...] = ()) -> bytes:
    """The key of one full block: 32 bytes, made with sha256 from all three arguments.

    parent: the key of the block before it, 32 bytes; ROOT_KEY for a sequence's first block. token_ids: whole
    numbers from 0 to 2**63 - 1; a list and a tuple of the same tokens have the same key. extra: what
    `extra_keys` gave.

    Equal arguments give equal keys, in every process and on every machine. Arguments that differ in anything
    give different keys: which bytes you hash is left to you, but no two different inputs may give the same
    bytes. Written one after the other as text, the tokens [1, 23] and [12, 3] would both be "123".

    >>> first = block_key(ROOT_KEY, [5, 6])
    >>> len(first), block_key(first, [7, 8]) == block_key(ROOT_KEY, [7, 8])
    (32, False)
    """
    # Task 2 ★ a key for every full block (15 points, about 15 minutes)
    # 1. Turn the tokens into bytes, each into the same number of them: array("q", …) has 8 for each.
    # 2. Turn the extra keys into bytes. json.dumps puts texts in quotes, and escapes the quotes in them.
    # 3. Have hashlib.sha256 hash parent, number of tokens, tokens and extra keys, and return its digest().
    raise NotImplementedError("ch07_prefix_cache, task 2: a key for every full block")


def block_keys(
    token_ids: Sequence[int], block_size: int, extra: tuple[tuple[str, str], ...] = ()
) -> list[bytes]:
    """The keys of a sequence's full blocks, in order. Tokens after the last full block are in no key.

    Block i has the tokens i · block_size to (i + 1) · block_size - 1. Its key is `block_key` of these, with
    the key of block i - 1 as its parent (ROOT_KEY for i = 0), and `extra`. `token_ids` stays as it is.

    Example: block size 4. 11 tokens have 2 keys, the last 3 tokens are in neither; 3 tokens have none.
    """
    # Task 2
    # 1. Go through the full blocks in order. Which one is the last that is full?
    # 2. Each key is the parent of the next.
    raise NotImplementedError("ch07_prefix_cache, task 2: a key for every full block")


class PrefixCache:
    """Two maps that mirror each other: key → block and block → key.

    It holds no K and no V and counts no users. It knows which block can be found under which key, whether
    somebody uses the block or not.

    Invariant: a key has one block, a block has one key or none, and the two maps agree. Identical blocks are
    not merged: when two requests compute the same block at the same time, the first one is published, and the
    other stays without a key.

    >>> cache = PrefixCache(block_size=2)
    >>> first = block_key(ROOT_KEY, [5, 6])
    >>> cache.publish(7, first)
    >>> cache.match([first], num_tokens=3), cache.match([first], num_tokens=2)
    ([7], [])
    """

    def __init__(self, block_size: int) -> None:
        """An empty cache, for blocks of `block_size` tokens (a public attribute)."""
        # Task 3 ★★ publish and forget (15 points, about 10 minutes)
        # 1. Keep block_size, and set up two empty dicts.
        raise NotImplementedError("ch07_prefix_cache, task 3: publish and forget")

    @property
    def num_blocks(self) -> int:
        """How many blocks can be found, in use or free."""
        # Task 3
        raise NotImplementedError("ch07_prefix_cache, task 3: publish and forget")

    def entries(self) -> dict[bytes, int]:
        """The map from key to block id, as a new dict."""
        # Task 3
        raise NotImplementedError("ch07_prefix_cache, task 3: publish and forget")

    def key(self, block_id: int) -> bytes | None:
        """The key under which a block can be found, or None."""
        # Task 3
        raise NotImplementedError("ch07_prefix_cache, task 3: publish and forget")

    def match(self, keys: Sequence[bytes], num_tokens: int) -> list[int]:
        """The longest run of cached blocks at the start of a prompt of `num_tokens` tokens, as a new list.

        keys: those of the prompt's full blocks, in order. The run ends at the first key that has no block:
        what is behind it does not count, even if it can be found. And at most (num_tokens - 1) // block_size
        blocks are returned, because the logits of the last token are needed, so it must be computed. Changes
        nothing.

        Example: block size 4, all blocks cached. A prompt of 8 tokens matches at most 1 block, one of 9 at
        most 2; one of 4 tokens, or of none, matches no block.
        """
        # Task 4 ★ find a prompt's beginning (10 points, about 10 minutes)
        # 1. How many keys may be looked at? (For 0 tokens: (0 - 1) // 4 is -1 in Python, and keys[:-1] is
        #    all but the last.)
        # 2. Look them up in order, and stop at the first one that is missing.
        raise NotImplementedError("ch07_prefix_cache, task 4: find a prompt's beginning")

    def publish(self, block_id: int, key: bytes) -> None:
        """Make a block findable under a key, once a step has filled it.

        If the key has a block already (this one or another), nothing happens: the first one stays. Otherwise
        the block is found under this key only: if it had another key before, that one is forgotten.
        """
        # Task 3
        # 1. Is the key taken? Then there is nothing to do.
        # 2. Forget the key that the block may have had.
        # 3. Enter it into both maps.
        raise NotImplementedError("ch07_prefix_cache, task 3: publish and forget")

    def forget(self, block_id: int) -> None:
        """The block is about to hold something else: it can't be found any more.

        Nothing happens if it has no key. (The allocator calls this for every block it hands out, as
        `on_reuse`.)
        """
        # Task 3
        # 1. Take the block's key out of one map, if it has one, and that key out of the other.
        raise NotImplementedError("ch07_prefix_cache, task 3: publish and forget")


class PrefixPool:
    """A pool whose freed blocks can be found again: an allocator and a prefix cache, wired together.

    Two public attributes: `allocator`, a `BlockAllocator`, and `cache`, a `PrefixCache`. A request is served
    like this: `hits = pool.cache.match(keys, num_tokens)`; `block_ids = pool.take(hits, num_new)`; its tokens
    are computed; `pool.cache.publish(block_id, key)` for each full block; and in the end
    `pool.release(block_ids)`.

    A block that nobody uses is free, and can still be found. When blocks are needed, the one that nobody has
    used for longest is overwritten first, and then it can't be found any more: least recently used, LRU.

    >>> pool, first = PrefixPool(num_blocks=3, block_size=2), block_key(ROOT_KEY, [5, 6])
    >>> block_ids = pool.take([], num_new=2)
    >>> pool.cache.publish(block_ids[0], first)
    >>> pool.release(block_ids); pool.take(pool.cache.match([first], num_tokens=4), num_new=1)
    [0, 2]
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """A pool of `num_blocks` free blocks of `block_size` tokens, none of which can be found."""
        # Task 5 ★★ least recently used (20 points, about 15 minutes)
        # 1. Make a cache of your own, and a BlockAllocator whose `on_reuse` tells the cache which block is
        #    about to hold something else.
        raise NotImplementedError("ch07_prefix_cache, task 5: least recently used")

    def take(self, hits: Sequence[int], num_new: int) -> list[int]:
        """Become a user of the cached blocks `hits` and of `num_new` fresh ones; returns both, hits first,
        in a list of its own.

        A hit that somebody uses gets one user more, which takes no free block. A hit that nobody uses is one
        of the free blocks: it is taken out of the queue with its content, keeps its key, and counts as needed
        like a fresh one. Fresh blocks come from the head of the free queue, which never holds a hit.

        `OutOfBlocks(needed, free, total)` if more is needed than is free; then nothing changes. The list
        `hits` is left as it is.

        Example: a pool of 4 blocks, all free, the queue is 3, 2, 1, 0, and 0 and 1 are hits. `take([0, 1],
        2)` gives [0, 1, 3, 2]. `take([0, 1], 3)` is an `OutOfBlocks`: need 5, 4 free of 4.
        """
        # Task 5
        # 1. How many of the hits are free? Compare what is needed with what is free, before anything changes.
        # 2. Secure the hits: `revive` those that are free, `share` the others.
        # 3. Then take the fresh blocks. Why not the other way round?
        raise NotImplementedError("ch07_prefix_cache, task 5: least recently used")

    def release(self, block_ids: Sequence[int]) -> None:
        """Give up one user of each block, the last block first, so that a sequence's end is evicted before
        its beginning. Blocks keep their keys: they are findable until they are handed out again. `block_ids`
        stays as it is.

        Example: after `release([0, 1, 2])` the queue ends with 2, 1, 0, if nobody else used them.
        """
        # Task 5
        # 1. `free_many` drops one user of each block, in the order given.
        raise NotImplementedError("ch07_prefix_cache, task 5: least recently used")


# Helpers of your own go here.


class RadixTree:
    """A challenge: the same hits, without keys. Sequences that begin alike share a path from the root.

    A node is a run of blocks, so a sequence of a thousand blocks may be one node; it is split, at a border
    between two blocks, only where another sequence goes a different way. SGLang finds its prefixes like this.

    >>> tree = RadixTree(block_size=2)
    >>> tree.insert([1, 2, 3, 4, 5], [10, 11]), tree.insert([1, 2, 9, 9], [20, 21])
    (0, 1)
    >>> tree.match([1, 2, 9, 9, 0]), tree.match([1, 2, 3, 4]), tree.num_nodes
    ([10, 21], [10], 3)
    """

    def __init__(self, block_size: int) -> None:
        """An empty tree, for blocks of `block_size` tokens."""
        # Task 6 ★★★ a radix tree (20 points, about 30 minutes)
        # 1. The root has no blocks, only children.
        raise NotImplementedError("ch07_prefix_cache, task 6: a radix tree")

    @property
    def num_nodes(self) -> int:
        """How many nodes there are below the root. An `insert` adds two at most, however long it is."""
        # Task 6
        raise NotImplementedError("ch07_prefix_cache, task 6: a radix tree")

    def insert(self, token_ids: Sequence[int], block_ids: Sequence[int]) -> int:
        """Remember in which blocks a sequence lies; block_ids has one block for each *full* block of tokens.
        Both lists are the caller's, and may be changed afterwards.

        Returns how many blocks, from the start, the tree had already: for these the tree keeps the block that
        was there first. (Example above: block 20 is not needed, since 10 holds the same.)
        """
        # Task 6
        # 1. Cut the tokens into blocks. Walk down as long as there is a child that begins with the next one.
        # 2. Where the sequence leaves a node before its end, split the node in two.
        # 3. What is left becomes a new node.
        raise NotImplementedError("ch07_prefix_cache, task 6: a radix tree")

    def match(self, token_ids: Sequence[int]) -> list[int]:
        """The blocks of the longest beginning of this prompt that the tree has, as a new list.

        As in `PrefixCache.match`: full blocks only, and at most (len(token_ids) - 1) // block_size.
        """
        # Task 6
        # 1. Walk down as in `insert`, and collect.
        raise NotImplementedError("ch07_prefix_cache, task 6: a radix tree")


def clairvoyant_hits(prompts: Sequence[Sequence[int]], num_blocks: int) -> int:
    """A challenge: the hits of a cache that knows the future, a ruler for every policy that doesn't.

    prompts: in the order in which they are served, one after the other; each is a list of block ids, where
    equal ids mean the same block behind the same beginning (as `hash_ids` in Mooncake's traces). A prompt's
    hits are the longest run at its start that is in the cache. After it, all of its blocks are in the cache.
    If these are more than `num_blocks`, blocks of *other* prompts are evicted, one by one: always the one
    whose next use is furthest away, never again being the furthest. Of several that are next used by the same
    prompt, the one that stands latest in it goes first. No prompt has more than `num_blocks` blocks. Returns
    the hits of all prompts together.

    Example: prompts [1, 2], [3, 4], [1, 2], and 3 blocks. One of 1 and 2 must go when [3, 4] comes: it is 2,
    which stands behind 1. The third prompt finds 1, so there is 1 hit. (LRU, tail first: also 1.) With
    prompts [1], [2], [3], [1] and 2 blocks, it is 2 that goes, and 1 is found: 1 hit, where LRU has none.
    """
    # Task 7 ★★★ the cache that knows the future (15 points, about 30 minutes)
    # 1. For each prompt and each of its blocks: which prompt uses the block next? Go through them backwards.
    # 2. Serve the prompts. When there are too many blocks, evict the one with the furthest next use.
    # 3. That is right, and slow on a long trace: a heap gives the furthest without looking at all of them.
    raise NotImplementedError("ch07_prefix_cache, task 7: the cache that knows the future")

"""The prefix cache: find blocks that already hold the K/V of a prompt's beginning.

Chats and system prompts begin alike. K/V depends on a token and on all tokens before it, so a full block is
reusable exactly when its tokens *and its whole prefix* are the same. A chain of hashes says that in 32 bytes:
each block's key is computed over the key of the block before it. Reference counts and the order of eviction
are the allocator's: a freed block stays findable until the allocator hands it out again, which makes the free
queue an LRU list. Chapter 07 (vllm/v1/core/kv_cache_utils.py, hash_block_tokens).
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence

ROOT_KEY = bytes(32)


def extra_keys(cache_salt: str | None = None, adapter: str | None = None) -> tuple[tuple[str, str], ...]:
    """What must be equal besides the tokens, each tagged with its domain, so that salt "x" is not adapter
    "x"."""
    tagged = (("cache_salt", cache_salt), ("adapter", adapter))
    return tuple((domain, value) for domain, value in tagged if value is not None)


def block_key(parent: bytes, token_ids: Sequence[int], extra: tuple[tuple[str, str], ...] = ()) -> bytes:
    """sha256 over (parent key, token ids, extra keys) of one full block; `parent` is ROOT_KEY for the first.

    Each part is fixed in length or carries its length, so no two different inputs give the same bytes to
    hash.
    """
    tokens = array("q", token_ids).tobytes()
    digest = hashlib.sha256(parent)
    digest.update(len(token_ids).to_bytes(8, "little"))
    digest.update(tokens)
    digest.update(json.dumps(extra).encode())
    return digest.digest()


class PrefixCache:
    """Two maps that mirror each other: key → block and block → key.

    Identical blocks are not merged: when two requests compute the same block at the same time, the first one
    is published and the other stays without a key.

    >>> cache = PrefixCache(block_size=2)
    >>> first = block_key(ROOT_KEY, [5, 6])
    >>> cache.publish(7, first)
    >>> cache.match([first], num_tokens=3), cache.match([first], num_tokens=2)
    ([7], [])
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks that a lookup could find, in use or free."""
        return len(self._block_of)

    def entries(self) -> dict[bytes, int]:
        """A copy of the map from key to block id."""
        return dict(self._block_of)

    def key(self, block_id: int) -> bytes | None:
        """The key under which a block can be found, or None."""
        return self._key_of.get(block_id)

    def match(self, keys: Sequence[bytes], num_tokens: int) -> list[int]:
        """The longest run of cached blocks at the start of a prompt of `num_tokens` tokens with these block
        keys.

        At most (num_tokens - 1) // block_size blocks: the last token is always computed, since its logits are
        needed. Block size 4: a prompt of 8 tokens matches at most 1 block, one of 9 at most 2.
        """
        hits: list[int] = []
        for key in keys[: max(num_tokens - 1, 0) // self.block_size]:
            block_id = self._block_of.get(key)
            if block_id is None:
                break
            hits.append(block_id)
        return hits

    def publish(self, block_id: int, key: bytes) -> None:
        """Make a block findable, once a step has filled it. Nothing happens if the key is taken already."""
        if key not in self._block_of:
            self.forget(block_id)
            self._block_of[key] = block_id
            self._key_of[block_id] = key

    def forget(self, block_id: int) -> None:
        """The block is about to hold something else (the allocator's `on_reuse`)."""
        key = self._key_of.pop(block_id, None)
        if key is not None:
            del self._block_of[key]

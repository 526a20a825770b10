"""A model of one line of arithmetic, for stepping an engine with a known result.

Its next token depends on every token before it, as a language model's does, and can be worked out by hand. It
finds the tokens where an engine put them: it writes them into the cache through the slot mapping, and reads
them back through the block tables. A block that was not copied, or copied too late, gives another token. It
has no weights and no attention. Used by the grader of chapter 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from minipaged.batch import Batch
from minipaged.config import ModelConfig
from minipaged.paged_attention import KVCache

VOCAB_SIZE = 256  # the bytes
FIRST, SECOND, OTHERS = 4.0, 3.0, -20.0  # logits


class ToyModel:
    """The likeliest token after t0, t1, t2, … is (1·t0 + 2·t1 + 3·t2 + …) modulo 256; the one after that, by
    number, is second. What a sampler chooses is one of the two.

    >>> engine = Engine(ToyModel(), ToyTokenizer(), num_blocks=8, block_size=4)
    >>> engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=2))
    >>> while engine.has_unfinished_requests():
    ...     (output,) = engine.step()
    >>> output.outputs[0].token_ids          # 1 + 4 + 9 = 14, and then 14 + 4 · 14 = 70
    [14, 70]
    """

    def __init__(self, eos_token_ids: tuple[int, ...] = (), max_model_len: int = 2048) -> None:
        self.config = replace(
            ModelConfig.tiny(),
            vocab_size=VOCAB_SIZE,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=2,
            eos_token_ids=eos_token_ids,
            max_model_len=max_model_len,
        )
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.num_calls = 0
        self._failure: BaseException | None = None

    def fail_next(self, interrupt: bool = False) -> None:
        """Have the next `forward` write half of what it should, and raise a RuntimeError; or, as on Ctrl-C, a
        KeyboardInterrupt."""
        self._failure = KeyboardInterrupt() if interrupt else RuntimeError("the device was lost")

    def forward(
        self, batch: Batch, kv_cache: KVCache, attention: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """Store the batch's T tokens and return the logits [len(logits_rows), 256] in fp32."""
        self.num_calls += 1
        k = batch.token_ids.float().reshape(-1, 1, 1).expand(-1, 1, 2)
        if self._failure:
            failure, self._failure = self._failure, None
            kv_cache.write(0, k + 1, k + 1, batch.slot_mapping)
            raise failure
        kv_cache.write(0, k, k, batch.slot_mapping)
        stored = kv_cache.k[0, :, :, 0, 0].flatten()
        logits = torch.full((len(batch.logits_rows), VOCAB_SIZE), OTHERS)
        for index, row in enumerate(batch.logits_rows.tolist()):
            sequence = int(torch.searchsorted(batch.query_start_loc, row, right=True)) - 1
            best = self._next_token(stored, kv_cache.k.shape[2], batch, sequence)
            logits[index, (best + 1) % VOCAB_SIZE] = SECOND
            logits[index, best] = FIRST
        return logits

    def _next_token(self, stored: torch.Tensor, block_size: int, batch: Batch, sequence: int) -> int:
        position = torch.arange(int(batch.context_lens[sequence]))
        slots = batch.block_tables[sequence, position // block_size] * block_size + position % block_size
        return int(((position + 1) * stored[slots].long()).sum()) % VOCAB_SIZE


class ToyTokenizer:
    """A vocabulary given as its tokens' bytes; without any, token n is the byte n. It has only what
    turning tokens into text needs.

    >>> ToyTokenizer([b"Hel", b"lo"]).token_bytes(1), ToyTokenizer().token_bytes(65)
    (b'lo', b'A')
    """

    def __init__(self, pieces: list[bytes] | None = None) -> None:
        self._pieces = [bytes([byte]) for byte in range(256)] if pieces is None else list(pieces)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for."""
        return self._pieces[token_id]

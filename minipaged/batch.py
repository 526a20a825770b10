"""One step's tokens as the model sees them: flat, with tables that say where each context lies.

This is the seam between two worlds: requests and lists of ints before it, only tensors after.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minipaged.scheduler import Work


@dataclass(frozen=True)
class Batch:
    """T tokens of S sequences, one sequence after another; all int64.

    token_ids, positions, slot_mapping: [T]. block_tables: [S, M], padded with 0, which is never looked at.
    context_lens: [S], the tokens each sequence attends to, its new ones included. query_start_loc: [S+1],
    where each one's tokens begin. logits_rows: the rows of [T] whose next token is sampled.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_start_loc: torch.Tensor
    logits_rows: torch.Tensor

    @classmethod
    def of(cls, step: list[Work], device: torch.device) -> Batch:
        """Lay the work of a step out, whose slots are taken already.

        Two sequences, a prompt of 3 tokens and the 6th token of another: positions [0, 1, 2, 5], context_lens
        [3, 6], query_start_loc [0, 3, 4], logits_rows [2, 3].
        """
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, contexts, tables, rows = [0], [], [], []
        for work in step:
            seq, end = work.sequence, work.sequence.num_computed_tokens
            token_ids += seq.token_ids[end - len(work.slots) : end]
            positions += range(end - len(work.slots), end)
            slots += work.slots
            starts.append(len(slots))
            contexts.append(end)
            tables.append(seq.table.block_ids if seq.table else [])
            if work.gets_token:
                rows.append(len(slots) - 1)
        longest = max(map(len, tables))
        padded = [block_ids + [0] * (longest - len(block_ids)) for block_ids in tables]
        values = (token_ids, positions, slots, padded, contexts, starts, rows)
        return cls(*(torch.tensor(value, dtype=torch.int64, device=device) for value in values))

"""Random operations against a dumb model: the memory layer alone, and the whole engine.

Each machine counts its steps; the last test of the file says how many ran. `MINIPAGED_LONG=1` runs many more,
from fresh seeds; without it they are the same every time.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import BlockTable, blocks_for
from minipaged.engine import Engine
from minipaged.errors import OutOfBlocks
from minipaged.invariants import check_invariants
from minipaged.params import BeamSearchParams, RequestOutput, SamplingParams
from minipaged.preemption import Preemption
from minipaged.prefix_cache import ROOT_KEY, PrefixCache, block_key
from tests.reference import all_free, finish, not_greedy, tiny_engine, tiny_hf_model

LONG = os.environ.get("MINIPAGED_LONG") == "1"
NUM_STEPS: Counter[str] = Counter()


def profile(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples * (20 if LONG else 1),
        stateful_step_count=steps,
        derandomize=not LONG,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


# -- the memory layer --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Branch:
    """A block table, and the tokens that its slots must hold."""

    table: BlockTable
    tokens: list[int] = field(default_factory=list)
    is_swapped: bool = False


class MemoryMachine(RuleBasedStateMachine):
    """Allocator, tables, copy-on-write, prefix cache and swap, with the content of every slot in a dict.

    `pool` and `cpu` map a slot to the token that was last written there; a fresh block holds nothing.
    """

    branches = Bundle("branches")

    @initialize(block_size=st.integers(1, 4), num_blocks=st.integers(2, 14), num_cpu_blocks=st.integers(1, 8))
    def start(self, block_size: int, num_blocks: int, num_cpu_blocks: int) -> None:
        self.block_size = block_size
        self.cache = PrefixCache(block_size)
        self.allocator = BlockAllocator(num_blocks, on_reuse=self.reused)
        self.cpu_allocator = BlockAllocator(num_cpu_blocks)
        self.pool: dict[int, int] = {}
        self.cpu: dict[int, int] = {}
        self.cached: dict[bytes, list[int]] = {}
        self.live: list[Branch] = []

    def reused(self, block: int) -> None:
        self.cache.forget(block)
        for slot in self.slots_of(block):
            self.pool.pop(slot, None)

    def slots_of(self, block: int) -> range:
        return range(block * self.block_size, (block + 1) * self.block_size)

    def keys(self, tokens: list[int]) -> list[bytes]:
        keys: list[bytes] = []
        for start in range(0, len(tokens) // self.block_size * self.block_size, self.block_size):
            keys.append(block_key(keys[-1] if keys else ROOT_KEY, tokens[start : start + self.block_size]))
        return keys

    def write(self, branch: Branch, tokens: list[int]) -> bool:
        """Append tokens as a step does: room, copies, writes, keys. False if there was no room."""
        state = (self.allocator.free_blocks(), list(branch.table.block_ids), branch.table.num_tokens)
        try:
            slots, copies = branch.table.append(len(tokens))
        except OutOfBlocks as error:
            assert error.needed > error.free == self.allocator.num_free
            assert state == (self.allocator.free_blocks(), branch.table.block_ids, branch.table.num_tokens)
            return False
        assert len(copies) <= 1
        for src, dst in copies:
            for old, new in zip(self.slots_of(src), self.slots_of(dst), strict=True):
                if old in self.pool:
                    self.pool[new] = self.pool[old]
        for slot, token in zip(slots, tokens, strict=True):
            assert self.allocator.ref_count(slot // self.block_size) == 1, "a shared block is written"
            self.pool[slot] = token
        branch.tokens += tokens
        for block, key in zip(branch.table.block_ids, self.keys(branch.tokens), strict=False):
            self.cache.publish(block, key)
        self.cached |= {key: branch.tokens[: (i + 1) * self.block_size]
                        for i, key in enumerate(self.keys(branch.tokens))}
        return True

    @rule(target=branches, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def admit(self, tokens: list[int]) -> Any:
        """Hits first, then the rest, as the engine admits a prompt."""
        NUM_STEPS["memory"] += 1
        hits = self.cache.match(self.keys(tokens), len(tokens))
        assert len(hits) <= (len(tokens) - 1) // self.block_size
        free_hits = sum(self.allocator.ref_count(block) == 0 for block in hits)
        if blocks_for(len(tokens), self.block_size) - len(hits) + free_hits > self.allocator.num_free:
            return multiple()
        for block in hits:
            (self.allocator.share if self.allocator.ref_count(block) else self.allocator.revive)(block)
        branch = Branch(BlockTable(self.allocator, self.block_size), tokens[: len(hits) * self.block_size])
        branch.table.adopt(hits, len(branch.tokens))
        self.live.append(branch)
        assert self.write(branch, tokens[len(branch.tokens) :]), "what was counted as fitting must fit"
        return branch

    @rule(branch=branches, tokens=st.lists(st.integers(0, 1), max_size=6))
    def grow(self, branch: Branch, tokens: list[int]) -> None:
        NUM_STEPS["memory"] += 1
        if not branch.is_swapped:
            self.write(branch, tokens)

    @rule(target=branches, branch=branches)
    def fork(self, branch: Branch) -> Any:
        NUM_STEPS["memory"] += 1
        if branch.is_swapped:
            return multiple()
        free = self.allocator.free_blocks()
        child = Branch(branch.table.fork(), list(branch.tokens))
        assert self.allocator.free_blocks() == free
        self.live.append(child)
        return child

    @rule(branch=consumes(branches))
    def release(self, branch: Branch) -> None:
        NUM_STEPS["memory"] += 1
        branch.table.free()
        self.live.remove(branch)

    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        """Move some branches to the other pool together; what they share there they share here."""
        NUM_STEPS["memory"] += 1
        out = data.draw(st.booleans())
        candidates = [branch for branch in self.live if branch.is_swapped != out]
        if not candidates:
            return
        chosen = data.draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=4, unique=True))
        pools = [(self.allocator, self.pool), (self.cpu_allocator, self.cpu)]
        (source, old), (target, new) = pools if out else reversed(pools)
        tables = [branch.table.block_ids for branch in chosen]
        before = (source.free_blocks(), target.free_blocks())
        distinct = {block for table in tables for block in table}
        try:
            moved, copies = Preemption.move_blocks(tables, source, target)
        except OutOfBlocks:
            assert len(distinct) > target.num_free
            assert (source.free_blocks(), target.free_blocks()) == before
            return
        assert {src for src, _ in copies} == distinct and len(copies) == len(distinct)
        for src, dst in copies:
            for src_slot, dst_slot in zip(self.slots_of(src), self.slots_of(dst), strict=True):
                new.pop(dst_slot, None)
                if src_slot in old:
                    new[dst_slot] = old[src_slot]
        for branch, blocks in zip(chosen, moved, strict=True):
            branch.table = BlockTable(target, self.block_size)
            branch.table.adopt(blocks, len(branch.tokens))
            branch.is_swapped = out

    @rule(data=st.data())
    def free_twice(self, data: st.DataObject) -> None:
        NUM_STEPS["memory"] += 1
        free = self.allocator.free_blocks()
        if free:
            with pytest.raises(ValueError):
                self.allocator.free(data.draw(st.sampled_from(free)))
            assert self.allocator.free_blocks() == free

    @invariant()
    def tables_hold_their_tokens_and_pools_add_up(self) -> None:
        for is_swapped, allocator, content in (
            (False, self.allocator, self.pool),
            (True, self.cpu_allocator, self.cpu),
        ):
            tables = [
                (branch.table, branch.tokens) for branch in self.live if branch.is_swapped == is_swapped
            ]
            uses: Counter[int] = Counter()
            for table, tokens in tables:
                assert len(table.block_ids) == blocks_for(len(tokens), self.block_size)
                assert [content[table.slot(position)] for position in range(len(tokens))] == tokens
                uses.update(table.block_ids)
            free = allocator.free_blocks()
            assert len(free) == len(set(free)) == allocator.num_free
            for block in range(allocator.num_blocks):
                assert allocator.ref_count(block) == uses[block]
                assert (block in free) == (uses[block] == 0)

    @invariant()
    def a_key_leads_to_the_tokens_it_was_made_from(self) -> None:
        for key, block in self.cache.entries().items():
            assert self.cache.key(block) == key
            held = [self.pool[slot] for slot in self.slots_of(block)]
            assert held == self.cached[key][-self.block_size :]

    def teardown(self) -> None:
        if hasattr(self, "live"):
            for branch in self.live:
                branch.table.free()
            assert self.allocator.num_free == self.allocator.num_blocks
            assert self.cpu_allocator.num_free == self.cpu_allocator.num_blocks


# -- the engine --------------------------------------------------------------------------------------------

HEADS = ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9], [80, 81])

prompts = st.builds(
    lambda head, length, tail: (head[:length] + tail) or [7],
    st.sampled_from(HEADS),
    st.integers(0, 8),
    st.lists(st.integers(0, 255), max_size=8),
)
engines = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 2, 4, 5]),
        "num_blocks": st.integers(5, 30),
        "num_cpu_blocks": st.integers(1, 16),
        "preemption_mode": st.sampled_from(["recompute", "swap"]),
        "max_num_batched_tokens": st.sampled_from([4, 7, 64]),
        "max_num_seqs": st.sampled_from([4, 6, 64]),
        "enable_prefix_caching": st.booleans(),
    }
)


class EngineMachine(RuleBasedStateMachine):
    """Requests of every kind come, go and are cut off, in a pool that is too small for them.

    At the end all greedy tokens are judged by transformers on the same weights, and every seeded sample must
    be what the request gives when it is alone in a big pool.
    """

    @initialize(arguments=engines)
    def start(self, arguments: dict[str, Any]) -> None:
        self.engine: Engine = tiny_engine(**arguments)
        self.added: dict[str, tuple[list[int], SamplingParams | BeamSearchParams]] = {}
        self.ended: dict[str, RequestOutput] = {}

    def add(self, prompt: list[int], params: SamplingParams | BeamSearchParams, priority: int = 0) -> None:
        NUM_STEPS["engine"] += 1
        request_id = str(len(self.added))
        pool = self.engine.memory.allocator.num_blocks * self.engine.memory.block_size
        if len(prompt) > pool:
            before = self.engine.stats()
            with pytest.raises(ValueError, match="can never fit"):
                self.engine.add_request(request_id, prompt, params, priority)
            assert self.engine.stats() == before
        else:
            self.engine.add_request(request_id, prompt, params, priority)
            self.added[request_id] = (prompt, params)

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 9),
        priority=st.sampled_from([0, 0, 0, -1, 3]),
        salt=st.sampled_from([None, None, "x", "y"]),
    )
    def add_greedy(self, prompt: list[int], max_tokens: int, priority: int, salt: str | None) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, cache_salt=salt)
        self.add(prompt, params, priority)

    @rule(prompt=prompts, n=st.integers(1, 4), max_tokens=st.integers(1, 7), seed=st.integers(0, 3),
          priority=st.sampled_from([0, 0, 2]))
    def add_samples(self, prompt: list[int], n: int, max_tokens: int, seed: int, priority: int) -> None:
        params = SamplingParams(n=n, temperature=5.0, max_tokens=max_tokens, seed=seed, stop_token_ids=[3])
        self.add(prompt, params, priority)

    @rule(
        prompt=prompts, beam_width=st.integers(1, 4), max_tokens=st.integers(1, 6), ignore_eos=st.booleans()
    )
    def add_beams(self, prompt: list[int], beam_width: int, max_tokens: int, ignore_eos: bool) -> None:
        self.add(prompt, BeamSearchParams(beam_width, max_tokens, ignore_eos=ignore_eos))

    @precondition(lambda self: self.engine.has_unfinished_requests())
    @rule()
    def step(self) -> None:
        self.one_step()

    @precondition(lambda self: self.engine.has_unfinished_requests())
    @rule(count=st.integers(2, 5))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.one_step()

    def one_step(self) -> None:
        NUM_STEPS["engine"] += 1
        busy = self.engine.has_unfinished_requests()
        for output in self.engine.step():
            if output.finished:
                assert output.request_id not in self.ended, "reported as finished twice"
                self.ended[output.request_id] = output
        step = self.engine.last_step
        assert not busy or step.work or step.preempted or step.out_of_capacity, "a step that does nothing"
        assert step.num_tokens <= self.engine.scheduler.max_num_batched_tokens
        assert len(step.work) <= self.engine.scheduler.max_num_seqs
        check_invariants(self.engine)

    @precondition(lambda self: self.engine.has_unfinished_requests())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        NUM_STEPS["engine"] += 1
        request_id = data.draw(st.sampled_from(sorted(self.engine.requests)))
        output = self.engine.abort(request_id)
        assert output is not None and output.finished
        self.ended[request_id] = output

    @precondition(lambda self: self.added)
    @rule(data=st.data())
    def abort_again(self, data: st.DataObject) -> None:
        NUM_STEPS["engine"] += 1
        ended = sorted(self.ended)
        assert self.engine.abort(data.draw(st.sampled_from(ended)) if ended else "unknown") is None

    @precondition(lambda self: self.engine.has_unfinished_requests())
    @rule(error=st.sampled_from([KeyboardInterrupt, RuntimeError]))
    def interrupted_step(self, error: type[BaseException]) -> None:
        """The forward dies; the next steps must not notice."""
        NUM_STEPS["engine"] += 1
        model = self.engine.model

        def die(*_: Any) -> Any:
            raise error("in the forward")

        model.forward = die  # type: ignore[method-assign]
        try:
            self.one_step()
        except error:
            check_invariants(self.engine)
        finally:
            del model.forward

    @invariant()
    def the_books_balance(self) -> None:
        if hasattr(self, "engine"):
            check_invariants(self.engine)
            assert set(self.engine.requests) == set(self.added) - set(self.ended)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(3000):
            if not self.engine.has_unfinished_requests():
                break
            self.one_step()
        assert set(self.ended) == set(self.added)
        assert all_free(self.engine)
        for request_id, (prompt, params) in self.added.items():
            self.judge(prompt, params, self.ended[request_id])

    def judge(
        self, prompt: list[int], params: SamplingParams | BeamSearchParams, output: RequestOutput
    ) -> None:
        reasons = {branch.finish_reason for branch in output.outputs}
        assert reasons <= {"stop", "length", "capacity", "abort"}
        if isinstance(params, BeamSearchParams):
            if reasons <= {"stop", "length"}:
                assert beam_tokens(output) == beam_tokens(alone(prompt, params))
        elif params.temperature == 0.0:
            tokens = output.outputs[0].token_ids
            assert not not_greedy(tiny_hf_model(), prompt, tokens), (prompt, tokens)
            assert len(tokens) == params.max_tokens or reasons <= {"capacity", "abort"}
        else:
            expected = {branch.index: branch for branch in alone(prompt, params).outputs}
            for branch in output.outputs:
                wanted = expected[branch.index]
                assert branch.token_ids == wanted.token_ids[: len(branch.token_ids)]
                if branch.finish_reason in ("stop", "length"):
                    assert (branch.token_ids, branch.finish_reason) == (
                        wanted.token_ids,
                        wanted.finish_reason,
                    )


def beam_tokens(output: RequestOutput) -> list[list[int]]:
    return [branch.token_ids for branch in output.outputs]


def alone(prompt: list[int], params: SamplingParams | BeamSearchParams) -> RequestOutput:
    """The request served by itself in a pool that it can't fill."""
    engine = tiny_engine(num_blocks=200)
    engine.add_request("alone", prompt, params)
    return finish(engine)["alone"]


TestMemory = MemoryMachine.TestCase
TestMemory.settings = profile(examples=200, steps=50)
TestEngine = EngineMachine.TestCase
TestEngine.settings = profile(examples=70, steps=45)


def test_the_machines_have_run_ten_thousand_steps(request: pytest.FixtureRequest):
    ran = {item.nodeid for item in request.session.items if item.path == request.path}
    if len(ran) < 3:
        pytest.skip("only part of this file was selected")
    print(f"steps: {dict(NUM_STEPS)}")
    assert NUM_STEPS["memory"] >= 4_000 and NUM_STEPS["engine"] >= 4_000
    assert sum(NUM_STEPS.values()) >= 10_000

"""Layers from elsewhere run in the engine (design section 7)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
import torch

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import BlockTable
from minipaged.copy_on_write import CopyOnWrite
from minipaged.course.outline import CHAPTERS
from minipaged.kernels import triton_status
from minipaged.kv_memory import num_blocks_for
from minipaged.llm import LLM
from minipaged.paged_attention import KVCache, paged_attention
from minipaged.params import SamplingParams
from minipaged.parts import KERNELS, LAYERS, Parts, load_parts
from minipaged.preemption import Preemption
from minipaged.prefix_cache import PrefixCache
from minipaged.scheduler import Scheduler
from tests.reference import finish, prompt_of, tiny_engine


def write_chapter(folder: Path, key: str, source: str) -> Path:
    chapter = next(chapter for chapter in CHAPTERS if chapter.key == key)
    file = folder / f"{chapter.file_stem}.py"
    file.write_text(source)
    return file


def test_without_replacements_every_part_is_the_package_s_own():
    parts = Parts()
    assert (parts.block_allocator, parts.block_table, parts.kv_cache) == (BlockAllocator, BlockTable, KVCache)
    assert (parts.copy_on_write, parts.prefix_cache) == (CopyOnWrite, PrefixCache)
    assert (parts.scheduler, parts.preemption) == (Scheduler, Preemption)
    assert parts.paged_attention is paged_attention


def test_parts_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Parts().block_table = BlockTable  # type: ignore[misc]


def test_every_part_that_a_chapter_builds_is_a_field():
    names = {field.name for field in fields(Parts)}
    assert {part for parts in LAYERS.values() for part in parts} <= names


def counted(calls: Counter[str], base: type, name: str) -> type:
    """A subclass that counts the calls of its public methods."""

    def wrap(method: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return getattr(super(cls, self), method)(*args, **kwargs)

        return call

    methods = [m for m, value in vars(base).items() if not m.startswith("_") and callable(value)]
    cls = type(f"Counted{base.__name__}", (base,), {method: wrap(method) for method in methods})
    return cls


def test_the_engine_runs_on_the_parts_it_is_given_and_gives_the_same_output():
    calls: Counter[str] = Counter()

    class CountedPreemption(Preemption):
        @staticmethod
        def choose_victim(running: Any) -> int:
            calls["preemption"] += 1
            return Preemption.choose_victim(running)

    def counted_attention(*args: Any, **kwargs: Any) -> Any:
        calls["paged_attention"] += 1
        return paged_attention(*args, **kwargs)

    classes = {
        "block_allocator": BlockAllocator,
        "block_table": BlockTable,
        "kv_cache": KVCache,
        "copy_on_write": CopyOnWrite,
        "prefix_cache": PrefixCache,
        "scheduler": Scheduler,
    }
    replaced: dict[str, Any] = {name: counted(calls, base, name) for name, base in classes.items()}
    replaced |= {"preemption": CountedPreemption, "paged_attention": counted_attention}

    def run(parts: Parts | None) -> list[list[list[int]]]:
        engine = tiny_engine(num_blocks=9, parts=parts)
        params = SamplingParams(n=2, temperature=5.0, seed=0, max_tokens=8, ignore_eos=True)
        for name in "ab":
            engine.add_request(name, prompt_of(7, seed=ord(name)), params)
        outputs = finish(engine)
        return [[branch.token_ids for branch in outputs[name].outputs] for name in "ab"]

    assert run(Parts(**replaced)) == run(None)
    assert set(calls) == {field.name for field in fields(Parts)} - {"num_blocks_for", *KERNELS}


def test_the_pool_is_sized_by_the_part_that_is_given():
    asked = []

    def one_block_less(budget_bytes: int, block_size: int, config: Any, dtype: torch.dtype) -> int:
        asked.append((budget_bytes, block_size))
        return num_blocks_for(budget_bytes, block_size, config, dtype) - 1

    own = LLM("tiny", kv_cache_memory_bytes=2**20).engine.stats().num_blocks
    llm = LLM("tiny", kv_cache_memory_bytes=2**20, parts=Parts(num_blocks_for=one_block_less))
    assert asked == [(2**20, 16)] and llm.engine.stats().num_blocks == own - 1


def test_a_chapter_is_taken_from_the_folder_and_the_rest_from_the_package(tmp_path: Path):
    source = (
        "from minipaged.block_allocator import BlockAllocator as Base\nclass BlockAllocator(Base): pass\n"
    )
    write_chapter(tmp_path, "ch03", source)
    parts = load_parts(tmp_path, "ch03")
    assert parts.block_allocator is not BlockAllocator and parts.block_allocator.__name__ == "BlockAllocator"
    assert parts.block_table is BlockTable
    engine = tiny_engine(parts=parts)
    assert type(engine.memory.allocator) is parts.block_allocator


def test_a_wrong_chapter_that_is_not_asked_for_blocks_nothing(tmp_path: Path):
    write_chapter(tmp_path, "ch04", "this is not Python")
    write_chapter(tmp_path, "ch03", "from minipaged.block_allocator import BlockAllocator\n")
    assert load_parts(tmp_path, "ch03") == Parts()


def test_all_takes_every_chapter_that_builds_a_layer(tmp_path: Path):
    names = {field.name: field.default for field in fields(Parts)}
    for chapter in CHAPTERS:
        parts = [part for part in LAYERS.get(chapter.stem, ()) if names[part] is not None]  # all but kernels
        if parts:
            lines = [f"from minipaged.parts import Parts\n{names[part].__name__} = Parts().{part}\n"
                     for part in parts]
            write_chapter(tmp_path, chapter.key, "".join(lines))
    assert load_parts(tmp_path, "all") == Parts()
    write_chapter(tmp_path, "ch06", "")
    with pytest.raises(ValueError, match=r"ch06_copy_on_write\.py"):
        load_parts(tmp_path, "all")
    (tmp_path / "ch06_copy_on_write.py").unlink()  # a file that is not there is not asked for
    assert load_parts(tmp_path, "all") == Parts()


@pytest.mark.parametrize("key", ["ch00", "ch99", "3", "", "ch13"])
def test_a_chapter_that_builds_no_layer_is_an_error_that_lists_those_that_do(tmp_path: Path, key: str):
    for known in ("ch03", "ch09"):
        write_chapter(tmp_path, known, "")
    write_chapter(tmp_path, "ch13", "")
    with pytest.raises(ValueError, match=rf"(?s)'{key}'.*ch03_block_allocator\.py, ch09_preemption\.py$"):
        load_parts(tmp_path, key)


@pytest.mark.parametrize("key", ["ch03", "all"])
def test_a_folder_without_the_file_is_an_error_that_names_both(tmp_path: Path, key: str):
    with pytest.raises(ValueError, match=rf"{tmp_path}.*'{key}'.*none"):
        load_parts(tmp_path, key)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import nowhere_to_be_found\n", "nowhere_to_be_found"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("raise NotImplementedError('ch03, task 1')\n", "ch03, task 1"),
    ],
)
def test_a_file_that_cannot_be_imported_is_an_error_with_the_reason(tmp_path: Path, source: str, reason: str):
    write_chapter(tmp_path, "ch03", source)
    with pytest.raises(ValueError, match=rf"(?s)ch03_block_allocator\.py.*{reason}"):
        load_parts(tmp_path, "ch03")


def test_a_file_may_have_dataclasses_and_attributes_for_properties(tmp_path: Path):
    source = """
from __future__ import annotations
from dataclasses import dataclass
from minipaged.block_allocator import BlockAllocator as Own

@dataclass
class Node:
    block_id: int

class BlockAllocator:
    def __init__(self, num_blocks, on_reuse=None):
        self.num_free = num_blocks
"""
    methods = [name for name in vars(BlockAllocator) if not name.startswith("_") and name != "num_free"]
    source += "".join(f"    {name} = Own.{name}\n" for name in methods)
    write_chapter(tmp_path, "ch03", source)
    assert load_parts(tmp_path, "ch03").block_allocator(3).num_free == 3


def test_a_class_that_is_missing_is_an_error_with_file_and_class(tmp_path: Path):
    write_chapter(tmp_path, "ch03", "class Allocator: pass\n")
    with pytest.raises(ValueError, match=r"(?s)ch03_block_allocator\.py.*BlockAllocator"):
        load_parts(tmp_path, "ch03")


def test_a_method_that_is_missing_is_an_error_with_file_class_and_method(tmp_path: Path):
    methods = [name for name in vars(BlockAllocator) if not name.startswith("_") and name != "share"]
    body = "\n".join(f"    def {name}(self): pass" for name in methods)
    write_chapter(tmp_path, "ch03", f"class BlockAllocator:\n{body}\n")
    with pytest.raises(ValueError, match=r"(?s)ch03_block_allocator\.py.*BlockAllocator.*share"):
        load_parts(tmp_path, "ch03")


@pytest.mark.parametrize("source", ["BlockAllocator = 5\n", "def BlockAllocator(n): pass\n"])
def test_something_that_is_no_class_is_an_error(tmp_path: Path, source: str):
    write_chapter(tmp_path, "ch03", source)
    with pytest.raises(ValueError, match=r"(?s)ch03_block_allocator\.py.*BlockAllocator"):
        load_parts(tmp_path, "ch03")


@pytest.mark.skipif(not triton_status().interpret, reason="kernels are not interpreted here")
def test_a_chapter_s_kernels_run_where_nobody_has_imported_triton_before():
    """Its file imports triton first, and triton must know by then that kernels are interpreted."""
    code = """if True:
        from minipaged import LLM, SamplingParams, load_parts
        params, tokens = SamplingParams(temperature=0, max_tokens=3), []
        for parts in (None, load_parts("solutions", "ch11")):
            llm = LLM("tiny", num_blocks=8, block_size=4, device="cpu", dtype="float32", parts=parts)
            tokens.append(llm.generate(["kernel"], params)[0].outputs[0].token_ids)
        assert tokens[0] == tokens[1], tokens
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()

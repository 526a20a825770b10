"""`EngineConfig`: one list of options, for `LLM`, `Engine` and the command line, which checks itself."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import click
import pytest

from minipaged import LLM, EngineConfig
from minipaged.cli import main
from minipaged.engine import CPU_KV_BYTES, Engine
from minipaged.kv_memory import num_blocks_for
from minipaged.loading.tokenizer import Tokenizer
from tests.reference import TINY, tiny_model

NAMES = {field.name for field in fields(EngineConfig)}


def test_the_defaults_are_those_that_the_pages_name() -> None:
    assert vars(EngineConfig()) == {
        "block_size": 16, "num_blocks": None, "kv_cache_memory_bytes": None, "max_num_seqs": 256,
        "max_num_batched_tokens": None, "max_model_len": None, "enable_prefix_caching": True,
        "preemption_mode": "recompute", "num_cpu_blocks": 0, "attention_backend": "auto", "seed": 0,
        "parts": None,
    }


def test_no_option_is_taken_and_ignored() -> None:
    engine = Engine(
        tiny_model(), Tokenizer.byte_level(), block_size=4, num_blocks=9, max_num_seqs=3,
        max_num_batched_tokens=7, max_model_len=33, enable_prefix_caching=False, preemption_mode="swap",
        num_cpu_blocks=2,
    )
    memory, scheduler = engine.memory, engine.scheduler
    assert (memory.block_size, memory.num_blocks, memory.num_cpu_blocks) == (4, 9, 2)
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (3, 7)
    assert (engine.max_model_len, scheduler.preemption_mode) == (33, "swap")
    assert not memory.enable_prefix_caching


def test_it_cannot_be_changed_and_a_copy_is_checked_again() -> None:
    config = EngineConfig(num_blocks=8)
    with pytest.raises(FrozenInstanceError):
        config.num_blocks = 9  # type: ignore[misc]
    with pytest.raises(ValueError, match="block_size must be a whole number of at least 1, got 0"):
        replace(config, block_size=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0}, "num_blocks must be .* at least 1 and at most 2147483647, got 0"),
        ({"num_blocks": 4, "kv_cache_memory_bytes": 5}, "num_blocks=4 or kv_cache_memory_bytes=5, not both"),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes .* got 0"),
        ({"num_cpu_blocks": -1}, "num_cpu_blocks .* at least 0, got -1"),
        ({"max_num_seqs": 0}, "max_num_seqs .* got 0"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens .* got -1"),
        ({"max_model_len": 1}, "max_model_len .* at least 2, got 1"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be True or False, got 1"),
        ({"preemption_mode": "drop"}, "'recompute' or 'swap', got 'drop'"),
        ({"preemption_mode": "swap"}, "set num_cpu_blocks above 0"),
        ({"attention_backend": "flash"}, "auto, torch, triton, numba, got 'flash'"),
        ({"seed": 2**63}, "seed .* got 9223372036854775808"),
        ({"parts": {}}, "parts must be Parts, .* got dict"),
    ],
)
def test_a_value_that_no_engine_could_have_is_refused_before_a_model_is_looked_for(
    options: dict[str, Any], message: str
) -> None:
    for make in (lambda: EngineConfig(**options), lambda: LLM("no such model", **options)):
        with pytest.raises(ValueError, match=message):
            make()


def test_a_name_that_there_is_not_is_an_error_that_says_it() -> None:
    for make in (lambda: LLM("tiny", num_blok=4), lambda: Engine(tiny_model(), None, num_blok=4)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="num_blok"):
            make()


@pytest.mark.parametrize("config", [5, {"num_blocks": 4}, "tiny"])
def test_something_else_than_a_config_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="config must be an EngineConfig, got"):
        LLM("tiny", config=config)


def test_a_config_and_options_go_together_and_the_options_win() -> None:
    config = EngineConfig(num_blocks=8, block_size=4)
    for engine in (
        LLM("tiny", config=config, num_blocks=5).engine,
        Engine(tiny_model(), Tokenizer.byte_level(), config, num_blocks=5),
    ):
        assert (engine.memory.num_blocks, engine.memory.block_size) == (5, 4)
    assert config.num_blocks == 8


def test_an_engine_without_a_size_takes_the_default_bytes_and_the_model_s_length() -> None:
    engine = Engine(tiny_model(), Tokenizer.byte_level())
    assert engine.memory.num_blocks == num_blocks_for(CPU_KV_BYTES, 16, TINY, tiny_model().dtype)
    assert engine.max_model_len == TINY.max_model_len and engine.scheduler.max_num_batched_tokens == 512
    with pytest.raises(ValueError, match=f"max_model_len .* at most {TINY.max_model_len}, got 9999"):
        Engine(tiny_model(), Tokenizer.byte_level(), num_blocks=4, max_model_len=9999)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_the_command_line_has_the_same_names_and_defaults(command: str) -> None:
    found = main.get_command(click.Context(main), command)
    assert found is not None
    options = {option.name: option for option in found.params if option.name in NAMES}
    assert options.keys() >= {"block_size", "num_blocks", "max_num_seqs", "preemption_mode", "num_cpu_blocks"}
    for name, option in options.items():
        if name != "seed":  # of the samples
            assert option.default == getattr(EngineConfig, name), name

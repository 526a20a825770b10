"""What the engine's tests compare with: dense attention, transformers on the same weights, and a driver.

Nothing here uses blocks. Expected values come from code that doesn't know the engine, or are written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from minipaged.config import ModelConfig
from minipaged.engine import Engine
from minipaged.invariants import check_invariants
from minipaged.loading.tokenizer import Tokenizer
from minipaged.loading.weights import random_weights
from minipaged.model import Llama
from minipaged.params import RequestOutput, SamplingParams

TINY = ModelConfig.tiny()


@cache
def tiny_model() -> Llama:
    """The model of `LLM("tiny")`, built once for all tests."""
    return Llama(TINY, random_weights(TINY, seed=0))


def tiny_engine(num_blocks: int = 512, block_size: int = 4, **kwargs: Any) -> Engine:
    """A fresh engine on the tiny model: small blocks, a big pool."""
    return Engine(
        tiny_model(), Tokenizer.byte_level(), num_blocks=num_blocks, block_size=block_size, **kwargs
    )


def greedy(max_tokens: int | None = 8, **kwargs: Any) -> SamplingParams:
    """Greedy parameters that no end-of-text token cuts short."""
    return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True} | kwargs)


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    """A prompt of that many random bytes."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(0, 256, (num_tokens,), generator=generator).tolist()


def finish(
    engine: Engine, max_steps: int = 2000, after_step: Callable[[], object] | None = None
) -> dict[str, RequestOutput]:
    """Step until nothing is left, checking the invariants after every step; the finished outputs by id."""
    finished = {}
    for _ in range(max_steps):
        if not engine.has_unfinished_requests():
            return finished
        finished |= {output.request_id: output for output in engine.step() if output.finished}
        check_invariants(engine)
        if after_step is not None:
            after_step()
    raise AssertionError(f"{sorted(engine.requests)} are still unfinished after {max_steps} steps")


def serve(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    """The first branch's token ids for every prompt, all served together."""
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, params)
    outputs = finish(engine)
    return [outputs[str(index)].outputs[0].token_ids for index in range(len(prompts))]


def all_free(engine: Engine) -> bool:
    """Whether neither pool has a block in use."""
    pools = [engine.memory.allocator, engine.memory.cpu_allocator]
    return all(pool is None or pool.num_free == pool.num_blocks for pool in pools)


def hf_model(config: ModelConfig, seed: int = 0) -> Any:
    """transformers' model of the same shape, with the weights of `random_weights(config, seed)`."""
    import transformers

    names = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_model_len,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": _rope_parameters(config),
        "tie_word_embeddings": config.tie_word_embeddings,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": list(config.eos_token_ids) or None,
    }
    config_class = getattr(transformers, config.architecture.replace("ForCausalLM", "Config"))
    model = getattr(transformers, config.architecture)(config_class(**names)).float().eval()
    missing, unexpected = model.load_state_dict(dict(random_weights(config, seed)), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def _rope_parameters(config: ModelConfig) -> dict[str, Any]:
    if config.rope_scaling is None:
        return {"rope_type": "default", "rope_theta": config.rope_theta}
    return {"rope_type": "llama3", "rope_theta": config.rope_theta} | vars(config.rope_scaling)


@cache
def tiny_hf_model() -> Any:
    """transformers' Llama with the weights of the tiny model."""
    return hf_model(TINY)


def hf_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    """Dense logits [len(token_ids), V] of one sequence."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].float()


def not_greedy(model: Any, prompt: list[int], output: list[int], tolerance: float = 1e-3) -> list[int]:
    """The places of `output` whose token isn't the likeliest after what came before, near-ties aside.

    One dense pass over prompt and output judges every place by its own past, so one wrong token is reported
    once and doesn't blame those after it.
    """
    if not output:
        return []
    logits = hf_logits(model, prompt + output)[len(prompt) - 1 : -1]
    chosen = logits[torch.arange(len(output)), output]
    return (logits.amax(dim=-1) - chosen > tolerance).nonzero().flatten().tolist()


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of the last rows of one sequence, in float64.

    q [m, H, D], k and v [c, G, D] -> [m, H, D].
    A Python loop over queries and heads, so that the mask and the map of heads are plain to see.
    """
    m, H, D = q.shape
    c, G, _ = k.shape
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros(m, H, D, dtype=torch.float64)
    for i in range(m):
        visible = c - m + i + 1
        for h in range(H):
            g = h // (H // G)
            weights = (k[:visible, g] @ q[i, h] * scale).softmax(dim=0)
            out[i, h] = weights @ v[:visible, g]
    return out


def interrupted_once(function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """`function`, but its first call raises `error`."""
    errors: Iterator[BaseException] = iter([error])

    def call(*args: Any, **kwargs: Any) -> Any:
        for pending in errors:
            raise pending
        return function(*args, **kwargs)

    return call

"""The shape of a model, checked once and frozen.

Every size in the engine (heads, head_dim, layers, the bytes of a KV block) comes from one `ModelConfig`.
`minipaged/loading/config_file.py` reads it from a model's `config.json`.
"""

from __future__ import annotations

from dataclasses import dataclass

from minipaged.errors import check_model

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretching of RoPE: slow waves are slowed by `factor`, fast ones kept, those between blended.

    A wave is slow when fewer than `low_freq_factor` of its periods fit into the original length, fast when
    more than `high_freq_factor` do. Example (Llama 3.2 1B): `RopeScaling(32.0, 1.0, 4.0, 8192)`.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """The numbers that define a Llama-family model, under vLLM's names.

    Example: `read_config("models/smollm2-135m").num_kv_heads == 3` (`minipaged/loading/config_file.py`).

    Lengths are in tokens, sizes in elements. `eos_token_ids` are the tokens that end a text; `dtype` is the
    checkpoint's, one of `DTYPES`. Numbers that contradict each other raise `ModelError`.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    qkv_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        check_model(
            heads % kv_heads == 0, f"{heads} query heads over {kv_heads} KV heads; expected a multiple"
        )
        check_model(self.head_dim % 2 == 0, f"head_dim is {self.head_dim}; expected an even number for RoPE")
        for eos in self.eos_token_ids:
            check_model(
                eos in range(self.vocab_size), f"eos token id {eos!r} is not in 0..{self.vocab_size - 1}"
            )
        check_model(self.dtype in DTYPES, f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}")

    @classmethod
    def tiny(cls) -> ModelConfig:
        """The config of `LLM("tiny")`: small enough to build in a moment, with GQA like larger models.

        Example: `ModelConfig.tiny().vocab_size == 260`, the size of `Tokenizer.byte_level()`.
        """
        return cls(
            architecture="LlamaForCausalLM",
            vocab_size=260,
            hidden_size=64,
            intermediate_size=128,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=16,
            max_model_len=2048,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            rope_scaling=None,
            qkv_bias=False,
            qk_norm=False,
            tie_word_embeddings=True,
            eos_token_ids=(257,),
            dtype="float32",
        )

"""What a user asks for and what comes back: sampling parameters and outputs, under vLLM's names.

Every value is checked when it is made, so that a mistake is reported where it was typed and not steps later.
How tokens are chosen is in `sampler.py` and `beam_search.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minipaged.errors import check_int

SMALLEST_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class SamplingParams:
    """How to choose the next tokens of one request.

    >>> SamplingParams(temperature=0.0, max_tokens=16)          # greedy
    >>> SamplingParams(n=4, temperature=0.8, top_p=0.95, seed=7)

    n: samples of the same prompt, which share its blocks. temperature: 0 is greedy. top_k: keep the k
    likeliest tokens (0 keeps all). top_p: keep the smallest set whose probability reaches p. min_p: drop
    tokens below min_p times the likeliest. max_tokens: at most this many new tokens (None: until the model's
    length). stop: texts that end the output and are not part of it. stop_token_ids: tokens that do; they are
    kept in `token_ids`. ignore_eos: go on past the end of text. seed: the same seed gives the same samples,
    whatever else is in the batch. logprobs: report that many likeliest tokens at each place.
    repetition_penalty: above 1 makes tokens already seen less likely. cache_salt: share cached blocks only
    with requests that carry the same salt.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int | None = 16
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    repetition_penalty: float = 1.0
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        check_int("n", self.n, minimum=1)
        check_int("top_k", self.top_k, minimum=0)
        for name, minimum in (("max_tokens", 1), ("logprobs", 0), ("seed", None)):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum)
        _check_number("temperature", self.temperature, lambda value: value >= 0, "0 (greedy) or more")
        _check_number("top_p", self.top_p, lambda value: 0 < value <= 1, "above 0 and at most 1")
        _check_number("min_p", self.min_p, lambda value: 0 <= value <= 1, "between 0 and 1")
        penalty = self.repetition_penalty
        _check_number("repetition_penalty", penalty, lambda value: 0.01 <= value <= 100, "0.01 to 100")
        _check_switches(self.ignore_eos, self.cache_salt)
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, list | tuple) or not all(isinstance(text, str) and text for text in stop):
            raise ValueError(f"stop must be a text or a list of texts, none of them empty, got {self.stop!r}")
        object.__setattr__(self, "stop", tuple(stop))
        if not isinstance(self.stop_token_ids, list | tuple):
            raise ValueError(f"stop_token_ids must be a list of token ids, got {self.stop_token_ids!r}")
        for token_id in self.stop_token_ids:
            check_int("each of stop_token_ids", token_id, minimum=0)
        if self.n > 1 and self.is_greedy:
            raise ValueError(
                f"n={self.n} greedy samples would all be the same; raise temperature, or set n=1"
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the temperature is 0, or too small to divide by."""
        return self.temperature < SMALLEST_TEMPERATURE


@dataclass(frozen=True)
class BeamSearchParams:
    """Beam search: keep the `beam_width` likeliest continuations, and return as many finished ones.

    A finished beam's score is its summed log-probability / (its number of new tokens ** length_penalty), so a
    penalty above 0 favours long outputs, as in transformers.
    """

    beam_width: int = 4
    max_tokens: int = 16
    length_penalty: float = 1.0
    ignore_eos: bool = False
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        check_int("beam_width", self.beam_width, minimum=1)
        check_int("max_tokens", self.max_tokens, minimum=1)
        _check_number("length_penalty", self.length_penalty, lambda value: abs(value) <= 10, "-10 to 10")
        _check_switches(self.ignore_eos, self.cache_salt)


@dataclass(frozen=True)
class CompletionOutput:
    """One answer of a request, as far as it has come.

    text never ends inside a character or inside what may become a stop text. finish_reason: None while it
    runs, then "stop", "length", "capacity" (the pool is too small for it) or "abort". logprobs: for each
    token, the likeliest tokens and the chosen one, {token id: log-probability}. score: of a beam.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: list[dict[int, float]] | None = None
    score: float | None = None


@dataclass(frozen=True)
class RequestOutput:
    """What a request has produced. num_cached_tokens: prompt tokens whose K/V the prefix cache already
    held."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int = 0


def _check_number(name: str, value: object, holds: Callable[[float], bool], expected: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
    if not is_number or not holds(float(value)):  # type: ignore[arg-type]
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def _check_switches(ignore_eos: object, cache_salt: object) -> None:
    if not isinstance(ignore_eos, bool):
        raise ValueError(f"ignore_eos must be True or False, got {ignore_eos!r}")
    if not (cache_salt is None or isinstance(cache_salt, str)):
        raise ValueError(f"cache_salt must be a text or None, got {cache_salt!r}")

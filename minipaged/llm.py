"""`LLM`: a model, its tokenizer and an engine behind three methods.

`LLM("smollm2-135m").generate(["Hello"])` is what a user wants to type, in the words of vLLM's `LLM`. It loads
the model and chooses defaults; the engine is `llm.engine`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import count
from pathlib import Path
from typing import Any

import torch

from minipaged.backends.choice import find_operators
from minipaged.config import ModelConfig
from minipaged.engine import Engine
from minipaged.engine_config import EngineConfig, configure
from minipaged.loading.config_file import read_config
from minipaged.loading.hub import find_model
from minipaged.loading.tokenizer import Tokenizer
from minipaged.loading.weights import random_weights, read_weights
from minipaged.model import Llama
from minipaged.params import BeamSearchParams, RequestOutput, SamplingParams

Params = SamplingParams | BeamSearchParams
Prompt = str | SequenceOf[int]
Conversation = SequenceOf[Mapping[str, str]]


class LLM:
    """A language model served through paged memory.

    >>> llm = LLM("smollm2-135m", block_size=16, num_blocks=512)
    >>> llm.generate(["The capital of France is"], SamplingParams(temperature=0.0))[0].outputs[0].text

    model: "smollm2-135m" (fetched on first use), a folder with config.json, tokenizer.json and safetensors, a
    .gguf file, or "tiny", a random model of 2 layers over bytes that is built from `seed` in a moment.
    dtype: "auto" is float32 on a CPU and the checkpoint's on a GPU. device: "cpu", "cuda", or None for a GPU
    when there is one. options: any field of `EngineConfig`, by name; or a `config`, with `options` replaced.
    """

    def __init__(
        self,
        model: str | Path = "smollm2-135m",
        *,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
        config: EngineConfig | None = None,
        **options: Any,
    ) -> None:
        config = configure(config, options)
        self.device = _device(device)
        self.model, self.tokenizer = _load(model, dtype, self.device, config)
        self.engine = Engine(self.model, self.tokenizer, config)
        self._mine: set[str] = set()  # requests of generate and stream; others belong to their callers
        self._newest: dict[str, RequestOutput] = {}
        self._ids = (f"llm-{number}" for number in count())

    def generate(
        self, prompts: Prompt | SequenceOf[Prompt], sampling_params: Params | SequenceOf[Params] | None = None
    ) -> list[RequestOutput]:
        """Serve all prompts (texts or lists of token ids) together; outputs come in the order of the prompts.

        `sampling_params` is one for all or one each. If one prompt is refused (ValueError), none is served.
        """
        prompts = _as_list(prompts)
        each = (
            sampling_params if isinstance(sampling_params, list | tuple) else [sampling_params] * len(prompts)
        )
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts but {len(each)} params; give one for all or one each")
        request_ids: list[str] = []
        try:
            for prompt, prompt_params in zip(prompts, each, strict=True):
                request_ids.append(self._add(prompt, prompt_params))
            while any(request_id in self.engine.requests for request_id in request_ids):
                self._step()
            return [self._newest[request_id] for request_id in request_ids]
        finally:
            self._leave(request_ids)

    def chat(
        self, messages: Conversation | SequenceOf[Conversation], sampling_params: Params | None = None
    ) -> list[RequestOutput]:
        """Answer a conversation, or several together, by the model's chat template.

        >>> llm.chat([{"role": "user", "content": "Hello"}])[0].outputs[0].text
        """
        is_one = not isinstance(messages, list | tuple) or not all(
            isinstance(item, list) for item in messages
        )
        conversations = [messages] if is_one or not messages else messages
        return self.generate([self.tokenizer.encode_chat(item) for item in conversations], sampling_params)  # type: ignore[arg-type]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Generator[RequestOutput]:
        """Serve one prompt and yield its output after every step; `outputs[0].text` only ever grows, never
        breaking a character. Leaving the loop early aborts the request.

        >>> for output in llm.stream("Once upon a time"):
        ...     print(output.outputs[0].text)
        """
        request_id = self._add(prompt, sampling_params)
        shown = None
        try:
            while request_id in self.engine.requests or self._newest.get(request_id) is not shown:
                if self._newest.get(request_id) is not shown:  # another stream's step may have brought it
                    shown = self._newest[request_id]
                    yield shown
                else:
                    self._step()
        finally:
            self._leave([request_id])

    def _add(self, prompt: Prompt, params: Params | None) -> str:
        request_id = next(self._ids)
        self.engine.add_request(request_id, prompt, params)
        self._mine.add(request_id)
        return request_id

    def _step(self) -> None:
        """One step of the engine, for every caller that waits: two streams may take turns."""
        for output in self.engine.step():
            if output.request_id in self._mine:
                self._newest[output.request_id] = output

    def _leave(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.engine.abort(request_id)
            self._newest.pop(request_id, None)
            self._mine.discard(request_id)


def _as_list(prompts: Prompt | SequenceOf[Prompt]) -> list[Prompt]:
    """One prompt (a text, or a list of token ids) as a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        raise ValueError(
            f"prompts are texts or lists of token ids, got {type(prompts).__name__}: {prompts!r:.60}"
        )
    token_ids = [item for item in prompts if isinstance(item, int)]
    return [token_ids] if token_ids else list(prompts)


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=device).item()
        return torch.device(device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise ValueError(f"device {device!r} cannot be used: {error}") from None


def _dtype(dtype: str | torch.dtype, config: ModelConfig, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        dtype = config.dtype if device.type == "cuda" else "float32"
    names = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    for name, value in names.items():
        if dtype in (name, value):
            return value
    raise ValueError(f"dtype must be 'auto' or one of {', '.join(names)}, got {dtype!r}")


def _load(
    model: str | Path, dtype: str | torch.dtype, device: torch.device, config: EngineConfig
) -> tuple[Llama, Tokenizer]:
    if model == "tiny":
        shape = ModelConfig.tiny()
        weights, tokenizer = random_weights(shape, config.seed), Tokenizer.byte_level()
    else:
        folder = find_model(model)
        shape = read_config(folder)
        weights, tokenizer = read_weights(folder), Tokenizer.from_folder(folder)
    dtype = _dtype(dtype, shape, device)
    operators_for = find_operators(config.attention_backend, shape, dtype, device)
    return Llama(shape, weights, dtype, device, operators_for), tokenizer

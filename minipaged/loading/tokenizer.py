"""Text to token ids and back, raw bytes per token, and chat templates.

A thin wrapper of the `tokenizers` library that adds what a serving engine needs beyond it: `token_bytes`,
because a stream must not print half of a UTF-8 character, and `render_chat`, because a chat model only
answers in the format it was trained on. Chat templates are programs that come with a model: they run in
jinja2's sandbox.

Left out: training a tokenizer, tool calls, images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import tokenizers
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from minipaged.errors import ModelError
from minipaged.loading.config_file import read_json

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _byte_alphabet() -> dict[str, int]:
    # GPT-2's: printable Latin-1 characters stand for their own byte, the others moved up from U+0100, in byte
    # order.
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


BYTE_ALPHABET = _byte_alphabet()


class Tokenizer:
    """Encode, decode and render chats with a `tokenizer.json` and its chat template.

    Example: `Tokenizer.byte_level().encode("Hi") == [72, 105]`.

    `special_tokens` are the texts that templates may name, such as {"bos_token": "<s>"}.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        self._chat_template = chat_template
        self._special_tokens = dict(special_tokens or {})
        self._is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self._special_ids = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Read `tokenizer.json`, and the chat template from `chat_template.jinja` or `tokenizer_config.json`.

        Example: `Tokenizer.from_folder("models/smollm2-135m").encode("Hello") == [19556]`.

        Raises: `ModelError` when `tokenizer.json` is missing or unreadable.
        """
        file = Path(path) / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{file} cannot be read ({error}); a model folder needs it") from None
        backend.no_truncation()
        backend.no_padding()
        config_file = file.with_name("tokenizer_config.json")
        config = read_json(config_file) if config_file.exists() else {}
        return cls(backend, _chat_template(file.parent, config), _special_tokens(config))

    @classmethod
    def byte_level(cls) -> Tokenizer:
        """The tokenizer of `LLM("tiny")`: ids 0-255 are bytes, four specials follow.

        Example: `Tokenizer.byte_level().encode("<|im_end|>\\n") == [257, 10]`.
        """
        backend = tokenizers.Tokenizer(models.BPE(vocab=dict(BYTE_ALPHABET), merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        names = ("<|im_start|>", "<|im_end|>", "<|pad|>", "<|unused|>")
        backend.add_special_tokens([AddedToken(name, special=True) for name in names])
        return cls(backend, CHATML)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, specials included; a model may have more rows than that."""
        return self._backend.get_vocab_size()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of `text`, by default with the specials (such as BOS) put around it.

        Example: `Tokenizer.byte_level().encode("é") == [195, 169]`. Raises: `ValueError` unless given a str.
        """
        if not isinstance(text, str):
            raise ValueError(f"text is a {type(text).__name__}; expected a str")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"not a valid text, {error.reason} at {error.start}: {text!r:.60}") from None
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, specials left out; a byte that is not UTF-8 becomes U+FFFD.

        Example: `Tokenizer.byte_level().decode([72, 105, 257]) == "Hi"`.
        """
        return self._backend.decode(list(token_ids), skip_special_tokens=True)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, maybe a part of a character; b"" for specials and unused ids.

        Joined over a text they are the UTF-8 of `decode`, but for the space that SentencePiece strips.

        Example: `Tokenizer.byte_level().token_bytes(195) == b"\\xc3"`, the first half of "é".
        """
        token = self._backend.id_to_token(token_id)
        if token is None or token_id in self._special_ids:
            return b""
        if self._is_byte_level:
            in_alphabet = all(char in BYTE_ALPHABET for char in token)  # an added token need not be
            return bytes(BYTE_ALPHABET[char] for char in token) if in_alphabet else token.encode()
        if len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace("▁", " ").encode()

    def render_chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as the model was trained to see it, ending where the assistant speaks next.

        Example: `render_chat([{"role": "user", "content": "Hi"}])` on the tiny tokenizer is
        "<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n".

        Raises: `ValueError` for malformed messages, without a template, and when the template refuses.
        """
        _check_messages(messages)
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except TemplateError as error:
            raise ValueError(f"the chat template refused the conversation: {error}") from None

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The token ids of `render_chat(messages)`; no specials are added, the template wrote its own."""
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    @cached_property
    def _template(self) -> Template:
        if self._chat_template is None:
            raise ValueError("this model has no chat template; use generate, or a chat (instruct) model")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}
        return environment.from_string(self._chat_template)


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # one for each use: [{"name": "default", "template": "..."}, ...]
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {name: config.get(f"{name}_token") for name in ("bos", "eos", "unk", "pad")}
    texts = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
    return {f"{name}_token": text for name, text in texts.items() if text is not None}


def _check_messages(messages: object) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ValueError(f"messages is {messages!r}; expected [{{'role': str, 'content': str}}, ...]")
    for i, message in enumerate(messages):
        fields = [message.get(key) for key in ("role", "content")] if isinstance(message, Mapping) else [None]
        if not all(isinstance(field, str) for field in fields):
            raise ValueError(f"message {i} is {message!r}; expected {{'role': str, 'content': str}}")


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)  # jinja's own escapes HTML


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)

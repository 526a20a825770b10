"""The tokenizer: text survives the round trip, bytes join to the text, and chats read as the model was
trained."""

from __future__ import annotations

import json
import random
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, processors

from minipaged.errors import ModelError
from minipaged.loading.tokenizer import Tokenizer

TINY = Tokenizer.byte_level()
CONVERSATIONS = [
    [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
    [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "  a\n"},
        {"role": "assistant", "content": "<b>&\"'"},
        {"role": "user", "content": "Zürich 日本 1234"},
    ],
]


def real_strings(count: int = 3000) -> list[str]:
    text, rng = "\n".join(topics.values()), random.Random(0)
    starts = [rng.randrange(len(text)) for _ in range(count)]
    return [text[start : start + rng.randrange(1, 200)] for start in starts]


def save(folder: Path, config: dict[str, Any], template_file: str | None = None) -> Path:
    TINY._backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template_file is not None:
        (folder / "chat_template.jinja").write_text(template_file)
    return folder


def joined(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, token_ids)).decode("utf-8", errors="replace")


def test_a_byte_is_its_own_token_id() -> None:
    assert TINY.vocab_size == 260
    assert TINY.encode("Hé\n") == [0x48, 0xC3, 0xA9, 0x0A]
    assert [TINY.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert TINY.encode("<|im_start|><|im_end|><|pad|><|unused|>") == [256, 257, 258, 259]


def test_specials_and_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert TINY.decode([256, 72, 105, 257]) == "Hi"
    assert [TINY.token_bytes(i) for i in (256, 257, 258, 259, 260, 10**6)] == [b""] * 6


@given(st.text())
def test_any_text_survives_the_round_trip(text: str) -> None:
    token_ids = TINY.encode(text)
    assert TINY.decode(token_ids) == text or "<|" in text
    assert b"".join(map(TINY.token_bytes, token_ids)) == text.encode() or "<|" in text


@given(st.lists(st.integers(0, 259)))
def test_bytes_of_any_ids_join_to_the_decoded_text(token_ids: list[int]) -> None:
    assert joined(TINY, token_ids) == TINY.decode(token_ids)


def test_real_text_survives_the_round_trip(real_model: Path) -> None:
    tokenizer = Tokenizer.from_folder(real_model)
    for text in real_strings():
        token_ids = tokenizer.encode(text)
        assert tokenizer.decode(token_ids) == text
        assert b"".join(map(tokenizer.token_bytes, token_ids)) == text.encode()


def test_bytes_of_random_ids_of_the_real_tokenizer_join_to_the_decoded_text(real_model: Path) -> None:
    tokenizer, rng = Tokenizer.from_folder(real_model), random.Random(0)
    for length in range(1, 300):
        token_ids = [rng.randrange(tokenizer.vocab_size) for _ in range(length)]
        assert joined(tokenizer, token_ids) == tokenizer.decode(token_ids)


def test_ids_and_chats_are_those_of_transformers(real_model: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs, ours = transformers.AutoTokenizer.from_pretrained(real_model), Tokenizer.from_folder(real_model)
    for text in real_strings(500):
        assert ours.encode(text) == theirs(text)["input_ids"]
    for messages in CONVERSATIONS:
        for prompt in (True, False):
            expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert ours.render_chat(messages, add_generation_prompt=prompt) == expected
        encoded = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        assert ours.encode_chat(messages) == encoded["input_ids"]


def sentencepiece_like() -> Tokenizer:
    vocab = {
        "<unk>": 0,
        "<s>": 1,
        **{f"<0x{byte:02X}>": 2 + byte for byte in range(256)},
        "▁": 258,
        "a": 259,
        "▁a": 260,
    }
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer(backend)


def test_sentencepiece_tokens_are_bytes_too_but_for_the_first_space() -> None:
    tokenizer = sentencepiece_like()
    token_ids = tokenizer.encode("a é a")
    assert token_ids == [1, 260, 258, 2 + 0xC3, 2 + 0xA9, 260]
    assert [tokenizer.token_bytes(i) for i in token_ids] == [b"", b" a", b" ", b"\xc3", b"\xa9", b" a"]
    assert joined(tokenizer, token_ids) == " " + tokenizer.decode(token_ids) == " a é a"
    assert tokenizer.encode("a", add_special_tokens=False) == [260]


def test_an_added_token_outside_the_byte_alphabet_stands_for_its_own_text() -> None:
    backend = tokenizers.Tokenizer.from_str(TINY._backend.to_str())
    backend.add_tokens([tokenizers.AddedToken("<my tag>", special=False)])
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("a<my tag>") == [97, 260]
    assert tokenizer.token_bytes(260) == b"<my tag>"
    assert joined(tokenizer, [97, 260]) == tokenizer.decode([97, 260]) == "a<my tag>"


def test_a_rendered_chat_gets_no_second_beginning_of_text() -> None:
    backend = tokenizers.Tokenizer.from_str(TINY._backend.to_str())
    bos = ("<|pad|>", 258)
    backend.post_processor = processors.TemplateProcessing(single="<|pad|> $A", special_tokens=[bos])
    tokenizer = Tokenizer(backend, "<|pad|>{{ messages[0].content }}")
    assert tokenizer.encode("a") == [258, 97]
    assert tokenizer.encode_chat([{"role": "user", "content": "a"}]) == [258, 97]


def test_truncation_and_padding_saved_in_a_tokenizer_are_not_applied(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(TINY._backend.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_folder(tmp_path).encode("123456") == list(b"123456")


def test_chatml_by_hand() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert TINY.render_chat(messages, add_generation_prompt=False) == rendered
    assert TINY.render_chat(messages) == rendered + "<|im_start|>assistant\n"
    assert TINY.encode_chat(messages) == TINY.encode(rendered + "<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("config", "template_file", "expected"),
    [
        ({"chat_template": "one {{ messages[0].content }}"}, None, "one hi"),
        (
            {
                "chat_template": [
                    {"name": "tool_use", "template": "t"},
                    {"name": "default", "template": "two"},
                ]
            },
            None,
            "two",
        ),
        ({"chat_template": "old"}, "new {{ bos_token is defined }}", "new False"),
        ({"bos_token": "<s>", "eos_token": {"content": "</s>"}}, "{{ bos_token }}{{ eos_token }}", "<s></s>"),
        (
            {},
            "{% if 1 %}\n  {% for m in messages %}\n{{ m.role }}\n  {% break %}\n{% endfor %}\n{% endif %}",
            "user\n",
        ),
        ({}, "{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
        ({}, "{{ strftime_now('%%') }}{{ tools is none }}", "%True"),
    ],
)
def test_templates_are_found_and_rendered_as_transformers_does(
    tmp_path: Path, config: dict[str, Any], template_file: str | None, expected: str
) -> None:
    tokenizer = Tokenizer.from_folder(save(tmp_path, config, template_file))
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == expected


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% if %}", "refused"),
    ],
)
def test_a_template_that_refuses_or_misbehaves_is_a_value_error(
    tmp_path: Path, template: str, words: str
) -> None:
    tokenizer = Tokenizer.from_folder(save(tmp_path, {}, template))
    with pytest.raises(ValueError, match=words):
        tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no chat template; use generate"):
        Tokenizer.from_folder(save(tmp_path, {})).encode_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "messages",
    [
        "hi",
        [],
        None,
        {"role": "user"},
        ["hi"],
        [{"role": "user"}],
        [{"role": "user", "content": 3}],
        [{"content": "x"}],
    ],
)
def test_malformed_messages_are_a_value_error(messages: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        TINY.render_chat(messages)


@pytest.mark.parametrize("text", [None, 3, ["a"], b"a"])
def test_encoding_what_is_no_text_is_a_value_error(text: Any) -> None:
    with pytest.raises(ValueError, match=f"{type(text).__name__}; expected a str"):
        TINY.encode(text)


@pytest.mark.parametrize("content", [None, "", "{}", '{"model": 3}'])
def test_a_missing_or_damaged_tokenizer_is_an_error_that_names_the_file(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)

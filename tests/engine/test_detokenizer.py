"""Text from tokens: characters never break, stop texts never show (issue: streaming, stop strings)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.detokenizer import Detokenizer
from minipaged.loading.tokenizer import Tokenizer

BYTES = Tokenizer.byte_level()


def pieces(data: bytes, stop: list[str] | None = None) -> tuple[list[str], str, bool]:
    """What a stream shows after each byte, the final text, and whether a stop text ended it."""
    stream, shown = Detokenizer(BYTES, stop or []), []
    for byte in data:
        ended = stream.append(byte)
        shown.append(stream.text if ended else stream.visible)
        if ended:
            return shown, stream.finish(), True
    return shown, stream.finish(), False


def test_a_character_appears_when_its_last_byte_does():
    assert pieces("aé€😀".encode())[0] == ["a", "a", "aé", "aé", "aé", "aé€", *["aé€"] * 3, "aé€😀"]


def test_half_a_character_at_the_end_is_shown_as_a_replacement_only_when_all_is_over():
    shown, text, _ = pieces("a€".encode()[:-1])
    assert shown == ["a", "a", "a"] and text == "a\ufffd"


def test_the_text_of_a_fork_goes_on_by_itself_from_the_middle_of_a_character():
    parent = Detokenizer(BYTES)
    parent.append(0xC3)
    child = parent.fork()
    parent.append(0xA9)
    child.append(0xA8)
    assert (parent.visible, child.visible) == ("é", "è")


@given(st.binary(max_size=40))
def test_any_bytes_give_the_text_that_decoding_them_at_once_gives(data: bytes):
    shown, text, _ = pieces(data)
    assert text == data.decode(errors="replace") == BYTES.decode(list(data))
    assert all(later.startswith(earlier) for earlier, later in zip(shown, [*shown[1:], text], strict=False))


@given(st.text(max_size=12), st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3))
def test_a_stream_of_text_only_ever_grows_and_never_shows_a_replacement(text: str, stop: list[str]):
    text = text.replace("\ufffd", "")
    shown, final, _ = pieces(text.encode(errors="ignore"), stop)
    for earlier, later in zip(["", *shown], [*shown, final], strict=True):
        assert later.startswith(earlier)
        assert "\ufffd" not in earlier


@given(
    st.text(alphabet="abé€", max_size=20),
    st.lists(st.text(alphabet="abé€", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_text_ends_before_the_first_stop_text_to_be_completed(text: str, stop: list[str]):
    shown, final, ended = pieces(text.encode(), stop)
    completed = [len(text[:n]) for n in range(len(text) + 1) if any(text[:n].endswith(s) for s in stop)]
    assert ended == bool(completed)
    if completed:
        head = text[: completed[0]]
        assert final == head[: len(head) - max(len(s) for s in stop if head.endswith(s))]
    else:
        assert final == text
    assert all(final.startswith(piece) for piece in shown), "no part of a stop text was ever shown"


def test_a_stop_text_may_begin_in_one_token_and_end_three_later():
    shown, text, ended = pieces(b"go <END> on", ["<END>"])
    assert (text, ended) == ("go ", True)
    assert shown == ["g", "go", "go ", "go ", "go ", "go ", "go ", "go "]


def test_what_looked_like_a_stop_text_is_shown_as_soon_as_it_cannot_be_one():
    assert pieces(b"<EN!", ["<END>"]) == (["", "", "", "<EN!"], "<EN!", False)


def test_half_a_stop_text_at_the_end_belongs_to_the_text():
    assert pieces(b"x <EN", ["<END>"])[1:] == ("x <EN", False)


def test_a_stop_text_that_repeats_its_own_beginning_is_found():
    assert pieces(b"xaaab", ["aab"])[1:] == ("xa", True)


def test_what_follows_the_stop_text_in_the_same_token_is_cut_off():
    class Words(Tokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return [b"Hello", b" world. More", b" text"][token_id]

    words = Words.byte_level()
    words.__class__ = Words
    stream = Detokenizer(words, [".", "ld"])
    assert [stream.append(0), stream.append(1)] == [False, True]
    assert stream.finish() == "Hello wor", "the stop text that begins first counts"


@pytest.mark.parametrize("token", [256, 257, 258, 259])
def test_special_tokens_have_no_text_and_do_not_break_a_character(token: int):
    stream = Detokenizer(BYTES)
    assert [stream.append(t) for t in (0xC3, token, 0xA9)] == [False] * 3
    assert stream.finish() == BYTES.decode([0xC3, token, 0xA9])


@pytest.fixture(scope="module")
def real_tokenizer(real_model: Path) -> Tokenizer:
    return Tokenizer.from_folder(real_model)


@settings(max_examples=200)
@given(text=st.text(max_size=30), cut=st.integers(0, 60))
def test_the_real_tokenizer_s_tokens_stream_to_the_text_that_it_decodes(
    real_tokenizer: Tokenizer, text: str, cut: int
):
    """Cut anywhere, also inside a character that takes several tokens."""
    token_ids = real_tokenizer.encode(text)[: cut or None]
    stream, shown = Detokenizer(real_tokenizer), [""]
    for token_id in token_ids:
        stream.append(token_id)
        shown.append(stream.visible)
    assert stream.finish() == real_tokenizer.decode(token_ids)
    assert all(later.startswith(earlier) for earlier, later in pairwise([*shown, stream.text]))

"""Chapter 05's pictures say in words what they show, and are the same bytes each time."""

from __future__ import annotations

import torch

from minipaged.course.chapters.ch05_paged_attention.figures import draw_batch, draw_weights
from minipaged.pictures.draw import to_png

WORDS = ["The", " old", " bridge", "\n", "\x05", " is"]


def test_a_batch_is_described_by_its_rows_and_what_they_are() -> None:
    label = draw_batch([0, 1, 4, 6], [7, 9, 2], ["A", "B", "C"]).get_label()
    assert "A has rows 0 to 0, a decode of 1 of 7 tokens" in label
    assert "B has rows 1 to 3, a chunk of 3 of 9 tokens" in label
    assert "C has rows 4 to 5, a prefill of 2 of 2 tokens" in label


def test_a_matrix_of_weights_is_described_by_its_blocks_and_its_largest_weights() -> None:
    weights = torch.tensor([[0.1, 0.1, 0.7, 0.05, 0.05, 0.0], [0.0, 0.0, 0.1, 0.1, 0.0, 0.8]])
    label = draw_weights(weights, [5, 2], 4, 8, WORDS, "A").get_label()
    assert "2 tokens look back at 6, which lie in the blocks [5, 2] of 8" in label
    assert "'␣bridge', '␣is'" in label


def test_the_last_digits_of_the_weights_do_not_show() -> None:
    weights = torch.full((1, 6), 1 / 6)
    one, other = (draw_weights(w, [5, 2], 4, 8, WORDS, "A") for w in (weights, weights + 1e-6))
    assert to_png(one) == to_png(other)


def test_a_token_that_the_font_lacks_is_a_box() -> None:
    axes = draw_weights(torch.ones(1, 6) / 6, [5, 2], 4, 8, WORDS, "A").axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert {"↵", "□", "␣bridge"} <= set(texts)

"""The pictures: everything in the engine's memory is in them, in words too, and drawing changes nothing."""

from __future__ import annotations

import warnings
from base64 import b64encode

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minipaged import LLM, SamplingParams, check_invariants
from minipaged.course.engine_map import LIT_EDGE, draw_engine_map
from minipaged.course.outline import CHAPTERS
from minipaged.engine import Engine
from minipaged.pictures.draw import draw_pool, draw_tables, find_owners, show, to_png


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", num_blocks=1)


def new_engine(llm: LLM, **options: object) -> Engine:
    return Engine(llm.model, llm.tokenizer, **({"num_blocks": 32, "block_size": 4} | options))


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def sampled(n: int) -> SamplingParams:
    return SamplingParams(n=n, temperature=1.0, seed=1, max_tokens=20, ignore_eos=True)


def texts(figure: Figure) -> list[str]:
    (axes,) = figure.axes
    in_legend = axes.get_legend().get_texts() if axes.get_legend() else []
    return [text.get_text() for text in (*axes.texts, *in_legend) if text.get_text()]


def rectangles(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


@pytest.fixture
def busy(llm: LLM) -> Engine:
    """A holds 6 tokens, B1 and B2 share 7, C has ended and left one full block that can still be found."""
    engine = new_engine(llm)
    engine.add_request("first", [1, 2, 3, 4, 5, 6], greedy(9))
    engine.add_request("second", [1, 1, 1, 1, 1, 1, 1], sampled(2))
    engine.add_request("third", [9, 8, 7, 6, 5], greedy(1))
    engine.step()
    return engine


def test_the_pool_shows_every_block_and_each_owner_once_for_each_of_its_blocks(busy: Engine) -> None:
    shown = texts(draw_pool(busy))
    assert shown[0] == "Pool of 32 blocks of 4 tokens: 4 used, 28 free, 1 of them still cached"
    assert {str(block_id) for block_id in range(32)} <= set(shown)
    assert [shown.count(label) for label in ("A", "B1", "B2", "C", "×2")] == [2, 2, 2, 0, 2]
    assert {"A: 6 tokens stored", "B1: 7 tokens stored", "free, still cached"} <= set(shown)


def test_the_coloured_part_of_a_block_is_the_part_that_is_written(busy: Engine) -> None:
    colour = to_rgba(find_owners(busy)[0].colour)
    widths = [patch.get_width() for patch in rectangles(draw_pool(busy)) if patch.get_facecolor() == colour]
    assert [width / max(widths) for width in widths] == pytest.approx([1.0, 0.5])  # 4 and 2 of 4 slots


def test_exactly_the_free_blocks_that_can_be_found_are_hatched(busy: Engine) -> None:
    assert [bool(patch.get_hatch()) for patch in rectangles(draw_pool(busy))].count(True) == 1


def test_the_label_says_in_words_what_is_drawn(busy: Engine) -> None:
    for figure in (draw_pool(busy), draw_tables(busy)):
        assert "A: 6 tokens in blocks [0, 1]. B1: 7 tokens in blocks [2, 3]." in str(figure.get_label())


def test_letters_and_colours_stay_when_an_earlier_request_ends(busy: Engine) -> None:
    before = [(owner.label, owner.colour) for owner in find_owners(busy)]
    busy.abort("first")
    assert [(owner.label, owner.colour) for owner in find_owners(busy)] == before[1:]


def test_a_table_shows_its_blocks_in_order_with_the_tokens_that_are_stored(llm: LLM) -> None:
    engine = new_engine(llm)
    engine.add_request("a", "in a$b$", greedy(9))
    engine.step()
    assert texts(draw_tables(engine))[1:] == [
        "A", "0 → 0", "i", "n", "␣", "a", "1 → 1", "$", "b", "$",
    ]


def test_a_long_table_shows_its_ends_and_many_rows_are_counted(llm: LLM) -> None:
    engine = new_engine(llm, num_blocks=64)
    engine.add_request("long", [1] * 50, greedy(9))
    for number in range(14):
        engine.add_request(str(number), [number], greedy(9))
    engine.step()
    shown = texts(draw_tables(engine))
    assert {"0 → 0", "3 → 3", "… 5 more …", "9 → 9", "12 → 12"} <= set(shown)
    assert "4 → 4" not in shown and "8 → 8" not in shown
    assert "15 running (3 of them not drawn)" in shown[0] and "M" not in shown
    assert "and 3 more" in texts(draw_pool(engine))


def test_blocks_swapped_out_are_not_drawn_into_the_pool_and_their_request_waits(llm: LLM) -> None:
    engine = new_engine(llm, num_blocks=4, num_cpu_blocks=4, preemption_mode="swap")
    engine.add_request("a", [1] * 6, greedy(9))
    engine.add_request("b", [2] * 6, greedy(9))
    while not engine.stats().swapped:
        engine.step()
    assert "B" not in texts(draw_pool(engine))
    assert texts(draw_tables(engine))[0].endswith("1 running; waiting: B")


def test_a_block_with_more_owners_than_fit_shows_their_request_and_number(llm: LLM) -> None:
    engine = new_engine(llm)
    engine.add_request("a", [1] * 8, sampled(6))
    engine.step()
    shown = texts(draw_pool(engine))
    assert shown.count("A") == shown.count("×6") == 2 and "A1" not in shown


@pytest.mark.parametrize("num_blocks", [1, 16, 17, 128, 129, 512, 513, 3000])
def test_a_pool_of_any_size_is_drawn_up_to_512_blocks_and_the_rest_counted(llm: LLM, num_blocks: int) -> None:
    figure = draw_pool(new_engine(llm, num_blocks=num_blocks))
    frames = [patch for patch in rectangles(figure) if patch.get_width() == patch.get_height()]
    assert len(frames) == min(num_blocks, 512)
    assert (f"the last {num_blocks - 512} are not drawn" in texts(figure)[0]) == (num_blocks > 512)


def test_drawing_changes_nothing_and_twice_gives_the_same_bytes(busy: Engine) -> None:
    before = busy.stats()
    assert to_png(draw_pool(busy)) == to_png(draw_pool(busy))
    assert to_png(draw_tables(busy)) == to_png(draw_tables(busy))
    assert busy.stats() == before
    check_invariants(busy)


def test_a_png_holds_no_words(busy: Engine) -> None:
    png = to_png(draw_pool(busy))
    assert png.startswith(b"\x89PNG") and b"tEXt" not in png and b"atplotlib" not in png


def test_glyphs_that_the_font_lacks_are_boxes_without_a_warning(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(llm.tokenizer), "decode", lambda self, token_ids: "語\U0001f600\x00" * 9)
    engine = new_engine(llm)
    engine.add_request("a", [1] * 6, greedy(9))
    engine.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_png(draw_tables(engine))
    assert texts(draw_tables(engine))[3] == "□" * 9 + "…"


def test_an_engine_without_requests_has_no_tables_to_draw(llm: LLM) -> None:
    assert texts(draw_tables(new_engine(llm))) == ["Block tables, logical → physical block: 0 running"]


@pytest.mark.parametrize("chapter", CHAPTERS[1:], ids=lambda chapter: chapter.key)
def test_the_map_lights_up_one_box_for_each_chapter(chapter) -> None:
    figure = draw_engine_map(chapter.stem)
    lit = [patch for patch in rectangles(figure) if patch.get_edgecolor() == to_rgba(LIT_EDGE)]
    assert len(lit) == 1 and str(figure.get_label()).endswith(f"Lit up: {chapter.stem}.")


def test_the_map_names_every_chapter_and_lights_up_nothing_unasked() -> None:
    figure = draw_engine_map()
    assert not [patch for patch in rectangles(figure) if patch.get_edgecolor() == to_rgba(LIT_EDGE)]
    numbers = [n for text in texts(figure) if "ch. " in text for n in text.split("ch. ")[1].split(", ")]
    assert sorted(map(int, numbers)) == list(range(1, 15))


def test_the_map_refuses_a_name_that_is_no_chapter_and_lists_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"no chapter is called 'paging'; expected one of start, kv_memory"):
        draw_engine_map("paging")


def test_a_shown_figure_is_an_image_with_its_label_as_alt_text(monkeypatch: pytest.MonkeyPatch) -> None:
    displayed = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: displayed.append(data))
    figure = draw_engine_map()
    figure.set_label('2 < 3 & "so on"')
    show(figure)
    assert 'alt="2 &lt; 3 &amp; &quot;so on&quot;"' in displayed[0]["text/html"]
    assert b64encode(to_png(figure)).decode() in displayed[0]["text/html"]
    assert displayed[0]["text/plain"] == '2 < 3 & "so on"'

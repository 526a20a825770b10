"""Chapter 10's grader: the engine. `minipaged check ch10` runs it on exercises/ch10_engine.py."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minipaged.course import Layer, Mismatch, Task, expect, expect_close, expect_error

TOY_MODEL = "minipaged.course.chapters.ch10_engine.toy_model"
TASKS = (
    Task(
        1, "a number of one's own", stars=1, points=10, minutes=5,
        hints=(
            "Whatever has a state gives another number the second time. What has none? A function.",
            "`random.Random(key)` is a generator that belongs to nobody else. A key may be a text.",
            'Two triples must never have the same text: f"{seed}/{branch}/{position}" keeps them apart.',
        ),
        compare="that nothing has to be stored with a request, forked with a branch, or saved at a swap",
    ),
    Task(
        2, "choose a token", stars=1, points=15, minutes=15,
        hints=(
            "Greedy first: one argmax over all rows. Then overwrite the rows that are to be drawn.",
            "`logits[drawn]` with a list of row numbers is a new tensor [len(drawn), V]; give `draw` the "
            "same rows of `rows`, in the same order.",
            "sums = probs.double().cumsum(dim=-1); the target is u times the last column of it; "
            "searchsorted with right=True finds the first sum above.",
        ),
        compare="why right=True, and why the sums are float64",
    ),
    Task(
        3, "text that never breaks a character", stars=1, points=10, minutes=10,
        hints=(
            "bytes.decode of each token alone can't work: half of a character is not text yet.",
            "codecs.getincrementaldecoder(\"utf-8\")(errors=\"replace\") keeps the bytes of an unfinished "
            "character until the next call of its `decode`.",
            "fork: copy.copy(self), then a new decoder with setstate(self._decoder.getstate()).",
        ),
        compare="what a fork shares, and what it must not share",
    ),
    Task(
        4, "top-k and top-p", stars=2, points=15, minutes=15,
        hints=(
            "A filter sets logits to -inf; the softmax then gives those tokens 0, and the others their share "
            "of 1.",
            "top-k: `row.topk(k).values[-1]` is the k-th largest. top-p: sort the row's softmax with "
            "descending=True and stable=True.",
            "A token is dropped if the sum of those before it reaches p: cumsum minus its own probability, "
            ">= p. `order[that]` are the ids to drop.",
        ),
        compare="that the token that crosses p stays, so the set is never empty",
    ),
    Task(
        5, "where an answer ends", stars=2, points=15, minutes=15,
        hints=(
            "A stop text may begin in one token and end in a later one: look also before the new characters, "
            "and hold back what may be its beginning.",
            "find: str.find with a start of first_new - len(stop) + 1, not below 0. overlap: try stop[:n] "
            "for n = len(stop) - 1 down to 1.",
            "append_token: is_eos (unless ignored) or in stop_token_ids or detokenizer.append(token_id); "
            "only then change; then finish for a stop, else for a length.",
        ),
        compare="that everything that can fail comes before the first change",
    ),
    Task(
        6, "the step", stars=2, points=20, minutes=20,
        hints=(
            "Three calls are the step: schedule, _execute, _take_in. The rest says goodbye to those that "
            "have ended.",
            "Blocks are moved before the model runs, since the model writes; they are published after it, "
            "since then they hold what their keys say.",
            "changed = self._reported_late() + step.out_of_capacity + self._take_in(logits, step), in a "
            "`try` with `except BaseException: self._recover(); raise`.",
        ),
        compare="how few lines are left for the engine when each layer does one thing",
    ),
    Task(
        7, "several tokens a step", stars=3, points=15, minutes=20,
        hints=(
            "propose: the last occurrence before the end itself. accept: compare the guess with what the "
            "model chose, row by row.",
            "The n-gram can begin at len(token_ids) - ngram_len - 1 at the latest: then comes its own place.",
            "Row i of the logits is behind i proposed tokens. The first row that disagrees still counts: it "
            "is the model's own next token.",
        ),
        compare="why the result is exactly the greedy one, whatever was proposed",
    ),
)

HAS_STATE = "the number depends on how many were drawn before: it must be a function of its arguments"
DISTURBS = "Python's own generator was seeded or used: a generator of its own disturbs nobody"
MIXED_UP = "different (seed, branch, position) give the same number: the key must keep the three apart"
IN_STEP = "the next number always lies at the same distance: it must not follow from the one before"
NOT_SPREAD = "the numbers are not evenly spread over [0, 1)"
CHANGED = "the caller's logits were changed"
LAST_OF_EQUALS = "of equally likely tokens the last was taken: it must be the lowest id"
IMPOSSIBLE = (
    "a token of probability 0 was drawn: the first sum above the target, not the first that reaches it"
)
NO_TEMPERATURE = "the temperature was not applied, or multiplied instead of divided"
MISPLACED = "a drawn token was given to another row"
BROKEN = "half a character was shown: its bytes must wait for the rest"
SWALLOWED = "bytes that are no UTF-8 were dropped: each becomes U+FFFD"
NOT_FLUSHED = "what was left of a broken last character was lost: finish shows it as U+FFFD"
ONE_DECODER = "a fork shares its parent's decoder: the bytes of one end up in the text of the other"
SHARED = "two streams share one decoder: the bytes of one end up in the text of the other"
NO_STOPS = "a fork forgot the stop texts"
STARTS_ANEW = "a fork forgot the bytes that its parent was keeping"
TIES_DROPPED = "a token as likely as the k-th was dropped"
NOT_IN_PLACE = "the caller's logits are as before: the filters work in place"
CROSSING_DROPPED = "the token that reaches p was dropped: it belongs to the set"
ONE_TOO_MANY = "one token more than needed was kept: p was reached before it"
K_ZERO = "k = 0 must keep all tokens"
IN_ONE_TOKEN = "the stop text was looked for in the new characters only: it may have begun in a token before"
SHOWN_TOO_EARLY = "the beginning of a stop text was shown: if the rest comes, it can't be taken back"
HELD_TOO_LONG = "more was held back than may become a stop text"
LENGTH_FIRST = "a length was reported although the token stops the answer: a stop counts before a length"
ONE_MORE = "the answer goes on although it has max_tokens tokens"
ONE_LESS = "the answer ended before it had max_tokens tokens"
EOS_ALWAYS = "the end of text ended the answer, although ignore_eos says to go on"
STOP_SHOWN = "the text of a stop token got into the output"
STOP_LOST = "the token that stopped the answer is not in token_ids"
COPIES_LATE = "the copies of the step were not made before the model ran"
SWAP_ORDER = "blocks were not swapped out and in before the model ran, out first"
NOT_PUBLISHED = "full blocks were not published: the prefix cache finds nothing"
NOT_FORGOTTEN = "a finished request stays among the requests: it is never over"
CAPACITY_LOST = "a request that the pool can't hold ended without a word"
NOT_RECOVERED = "after a failure the memory must start anew (_recover), and the error must go on"
GUESS_KEPT = "a proposed token was kept although the model says another"
OWN_LOST = "the model's own token behind the accepted ones was lost"
FIRST_OCCURRENCE = "the first occurrence was taken, not the last"
FOUND_ITSELF = "the end was found to be an occurrence of itself"


# -- task 1: a number of one's own ---------------------------------------------------------------------------


@pytest.mark.task(1)
def test_the_same_three_give_the_same_number_whatever_came_before(layer: Layer) -> None:
    first = layer.uniform(7, 0, 5)
    for other in ((7, 0, 6), (8, 0, 5), (7, 1, 5)):
        layer.uniform(*other)
    again = layer.uniform(7, 0, 5)
    expect("uniform(7, 0, 5), after others", again, first, [(again, HAS_STATE)])
    forwards = [layer.uniform(3, 0, position) for position in range(6)]
    backwards = [layer.uniform(3, 0, position) for position in reversed(range(6))]
    same = {False: HAS_STATE}
    expect("drawn backwards, the same numbers", backwards[::-1] == forwards, True, same)


@pytest.mark.task(1)
def test_it_is_a_float_from_0_up_to_1(layer: Layer) -> None:
    for position in range(20):
        number = layer.uniform(1, 0, position)
        expect(f"type(uniform(1, 0, {position}))", type(number).__name__, "float")
        expect(f"0 <= uniform(1, 0, {position}) < 1", 0 <= number < 1, True)


@pytest.mark.task(1)
@pytest.mark.parametrize(
    ("one", "other"),
    [((3, 0, 4), (3, 0, 5)), ((3, 0, 4), (3, 1, 4)), ((3, 0, 4), (4, 0, 4)), ((1, 0, 2), (0, 1, 2)),
     ((1, 1, 12), (1, 11, 2)), ((11, 1, 2), (1, 11, 2)), ((2, 3, 4), (4, 3, 2)),
     ((5, 0, 0), (0, 5, 0)), ((2**62, 0, 1), (2**62 + 1, 0, 1)), ((0, 1, 6), (0, 2, 3)),
     ((2**32 + 5, 0, 1), (5, 0, 1)), ((-3, 0, 1), (3, 0, 1)), ((0, 0, 4), (1, 0, 4))]
    + [((0, 0, base), (0, 1, 0)) for base in (10, 100, 256, 1000, 1024, 4096, 10_000, 2**16, 10**6, 2**20)]
    + [((0, base, 0), (1, 0, 0)) for base in (10, 100, 256, 1000, 1024, 4096, 10_000)],
)
def test_other_three_give_another_number(
    layer: Layer, one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    numbers = layer.uniform(*one), layer.uniform(*other)
    expect(f"uniform{one} == uniform{other}", numbers[0] == numbers[1], False, {True: MIXED_UP})


@pytest.mark.task(1)
def test_python_s_own_generator_goes_on_undisturbed(layer: Layer) -> None:
    generator = layer.given("random")  # the subject's, wherever that is
    before = generator.getstate()
    layer.uniform(1, 2, 3)
    undisturbed = generator.getstate() == before
    generator.setstate(before)
    expect("Python's own generator is as before", undisturbed, True, {False: DISTURBS})


@pytest.mark.task(1)
def test_the_numbers_are_evenly_spread(layer: Layer) -> None:
    for what, arguments in (
        ("positions", [(42, 0, position) for position in range(2000)]),
        ("branches", [(42, branch, 9) for branch in range(2000)]),
        ("seeds", [(seed, 0, 9) for seed in range(2000)]),
    ):
        numbers = layer.given("minipaged.course.layer").call_each(layer.uniform, arguments)
        in_tenths = [sum(tenth <= 10 * number < tenth + 1 for number in numbers) for tenth in range(10)]
        even = all(120 <= count <= 280 for count in in_tenths)  # 200 each, and a standard deviation of 13.4
        expect(f"2,000 {what} are spread evenly, {in_tenths} in each tenth", even, True, {False: NOT_SPREAD})
        fine = len(set(numbers)) > 1990
        expect(f"hardly any two of 2,000 {what} give the same number", fine, True, {False: "it was rounded"})
        gaps = {round((b - a) % 1, 6) for a, b in itertools.pairwise(numbers)}
        expect(
            f"neighbouring {what} have nothing to do with each other",
            len(gaps) > 1500,
            True,
            {False: IN_STEP},
        )


# -- task 2: choose a token ----------------------------------------------------------------------------------


def rows_of(layer: Layer, numbers: Sequence[float], **params: Any) -> Any:
    """A SamplingRow for each number, on the subject's side."""
    given_params, make = layer.given.SamplingParams(**params), layer.given("minipaged.sampler").SamplingRow
    call_each = layer.given("minipaged.course.layer").call_each
    return call_each(make, [(given_params, [0], number) for number in numbers])


def row_of(layer: Layer, number: float, **params: Any) -> Any:
    """One of them."""
    return rows_of(layer, [number], **params)[0]


def logits_of(*rows: Sequence[float]) -> torch.Tensor:
    """Logits of rows of probabilities."""
    return torch.tensor([[math.log(p) if p > 0 else -math.inf for p in row] for row in rows])


def shares(layer: Layer, probs: list[float], num_draws: int = 200, **params: Any) -> list[float]:
    """How often each token comes up, over numbers that are evenly spread."""
    rows = rows_of(layer, [(i + 0.5) / num_draws for i in range(num_draws)], **params)
    drawn = layer.sample(logits_of(probs).expand(num_draws, -1), rows)
    return [drawn.count(token_id) / num_draws for token_id in range(len(probs))]


@pytest.mark.task(2)
def test_greedy_takes_the_likeliest_and_of_equals_the_lowest_id(layer: Layer) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 3.0], [-1.0, -1.0, -1.0]])
    rows = rows_of(layer, [0.99] * 3, temperature=0.0)
    expect("sample(…), all greedy", layer.sample(logits, rows), [1, 0, 0],
           [([1, 2, 2], LAST_OF_EQUALS)])


@pytest.mark.task(2)
@pytest.mark.parametrize(
    ("number", "token_id"),
    [(0.0, 0), (0.2, 0), (0.499, 0), (0.501, 1), (0.799, 1), (0.801, 2), (0.999, 2), (1 - 2**-53, 2)],
)
def test_a_number_falls_on_a_token(layer: Layer, number: float, token_id: int) -> None:
    row = row_of(layer, number)
    expect(
        f"probabilities 0.5, 0.3, 0.2, u = {number}",
        layer.sample(logits_of([0.5, 0.3, 0.2]), [row]),
        [token_id],
    )


@pytest.mark.task(2)
def test_a_token_without_probability_is_never_drawn(layer: Layer) -> None:
    probs = [0.0, 0.0, 0.5, 0.0, 0.5, 0.0]
    for number, token_id in ((0.0, 2), (0.5, 4), (1 - 2**-53, 4)):
        got = layer.sample(logits_of(probs), [row_of(layer, number)])
        expect(f"probabilities {probs}, u = {number}", got, [token_id],
               [([other], IMPOSSIBLE) for other in (0, 1, 3, 5, 6)])


@pytest.mark.task(2)
def test_a_temperature_sharpens_or_flattens(layer: Layer) -> None:
    probs = [0.6, 0.3, 0.1]
    for temperature in (0.5, 2.0):
        weights = [p ** (1 / temperature) for p in probs]
        expected, wrong = ([w / sum(v) for w in v] for v in (weights, [p**temperature for p in probs]))
        got = torch.tensor(shares(layer, probs, temperature=temperature))
        expect_close(
            f"shares of {probs} at temperature {temperature}", got, torch.tensor(expected), 0.006,
            mistakes=[(torch.tensor(probs), NO_TEMPERATURE), (torch.tensor(wrong), NO_TEMPERATURE)],
        )


@pytest.mark.task(2)
def test_a_temperature_near_0_is_not_greedy_and_each_row_has_its_own(layer: Layer) -> None:
    probs = [0.48, 0.52]
    likelier = 1 / (1 + (0.48 / 0.52) ** 20)  # 0.83 at temperature 0.05
    got = torch.tensor(shares(layer, probs, temperature=0.05))
    what = f"shares of {probs} at temperature 0.05"
    expect_close(what, got, torch.tensor([1 - likelier, likelier]), 0.006,
                 mistakes=[(torch.tensor([0.0, 1.0]), "a low temperature was taken for greedy")])
    rows = [row_of(layer, 0.3, temperature=temperature) for temperature in (0.05, 2.0, 0.05)]
    drawn = layer.sample(logits_of(probs).expand(3, -1), rows)
    mistakes = [(other, "all rows had the temperature of one") for other in ([1, 1, 1], [0, 0, 0])]
    expect(f"u = 0.3, probabilities {probs}, temperatures 0.05, 2, 0.05", drawn, [1, 0, 1], mistakes)


@pytest.mark.task(2)
def test_the_sums_are_fine_enough_for_a_rare_token(layer: Layer) -> None:
    got = layer.sample(logits_of([1.0, 3e-8]), [row_of(layer, 1 - 1e-8)])
    coarse = {0: "the sums were added up, or kept, in float32: rare tokens vanish"}
    expect("probabilities 1 and 3e-8, u = 1 - 1e-8", got[0], 1, coarse)


@pytest.mark.task(2)
def test_min_p_counts_from_the_likeliest(layer: Layer) -> None:
    got = torch.tensor(shares(layer, [0.5, 0.3, 0.15, 0.05], min_p=0.5))
    expect_close(
        "shares of 0.5, 0.3, 0.15, 0.05 with min_p=0.5", got, torch.tensor([0.625, 0.375, 0, 0]), 0.006
    )


@pytest.mark.task(2)
def test_each_row_has_its_own_parameters_and_its_own_number(layer: Layer) -> None:
    logits = logits_of([0.1, 0.2, 0.7], [0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.25, 0.25, 0.5], [0.4, 0.4, 0.2])
    rows = [row_of(layer, 0.15), row_of(layer, 0.9, temperature=0.0), row_of(layer, 0.95),
            row_of(layer, 0.3), row_of(layer, 0.9, temperature=0.0)]
    expected = [1, 0, 2, 1, 0]
    got = layer.sample(logits, [*rows])
    expect("sample(…) of five rows, two of them greedy", got, expected)
    expect("types of its result", [type(token_id).__name__ for token_id in got], ["int"] * 5)
    for order in ([4, 3, 2, 1, 0], [2, 0], [1, 3], [3]):
        got = layer.sample(logits[order], [rows[index] for index in order])
        wanted = [expected[index] for index in order]
        expect(
            f"the same of rows {order}",
            got,
            wanted,
            [(got, MISPLACED)] if sorted(got) == sorted(wanted) else [],
        )


@pytest.mark.task(2)
def test_the_logits_stay_as_they_are(layer: Layer) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.5, 3.0]])
    before = logits.clone()
    layer.sample(logits, [row_of(layer, 0.3, temperature=0.5), row_of(layer, 0.3, temperature=2.0)])
    expect("the logits afterwards", logits, before, [(logits.clone(), CHANGED)])
    layer.sample(logits, [row_of(layer, 0.3, top_k=1), row_of(layer, 0.3, top_p=0.1)])
    expect(
        "the logits after rows at temperature 1, with filters", logits, before, [(logits.clone(), CHANGED)]
    )


@pytest.mark.task(2)
def test_a_large_vocabulary_is_drawn_to_its_last_token(layer: Layer) -> None:
    size = 50_000
    logits = torch.zeros(1, size)
    for number in (0.0, 0.1, 0.5, 0.77777, 0.999999):
        got = layer.sample(logits, [row_of(layer, number)])[0]
        close = abs(got - number * size) <= 1.5
        expect(f"{size} equal tokens, u = {number}: token {got}, at most 1 from u * V", close, True)


# -- task 3: text that never breaks a character --------------------------------------------------------------


def byte_stream(layer: Layer, stop: tuple[str, ...] = ()) -> Any:
    """A Detokenizer whose tokens are bytes."""
    return layer.Detokenizer(layer.given(TOY_MODEL).ToyTokenizer(), stop)


def shown_after_each(stream: Any, data: bytes) -> list[str]:
    """What a stream shows after each byte."""
    shown = []
    for byte in data:
        stream.append(byte)
        shown.append(stream.visible)
    return shown


@pytest.mark.task(3)
def test_a_character_is_shown_when_its_last_byte_is_there(layer: Layer) -> None:
    stream = byte_stream(layer)
    expect("text of a new Detokenizer", stream.text, "")
    for text in ("aé", "€!", "😀."):
        stream, data = byte_stream(layer), text.encode()
        complete = [data[: n + 1].decode(errors="ignore") for n in range(len(data))]
        broken = [data[: n + 1].decode(errors="replace") for n in range(len(data))]
        alone = [
            "".join(bytes([byte]).decode(errors="replace") for byte in data[: n + 1])
            for n in range(len(data))
        ]
        expect(f"shown after each byte of {text!r}", shown_after_each(stream, data), complete,
               [(broken, BROKEN), (alone, BROKEN)])


@pytest.mark.task(3)
def test_bytes_that_are_no_text_become_a_replacement_character(layer: Layer) -> None:
    for data in (b"a\xffb", b"\xc3!", b"\xe2\x82 x", b"\xa9z"):
        stream = byte_stream(layer)
        got = shown_after_each(stream, data)[-1]
        expect(f"text of {data!r}", got, data.decode(errors="replace"),
               [(data.decode(errors="ignore"), SWALLOWED)])


@pytest.mark.task(3)
def test_what_is_left_of_a_character_is_shown_at_the_end(layer: Layer) -> None:
    stream = byte_stream(layer)
    expect("shown after each byte", shown_after_each(stream, b"ok \xf0\x9f\x98"), ["o", "ok", *["ok "] * 4])
    expect("finish()", stream.finish(), "ok \ufffd", {"ok ": NOT_FLUSHED})
    expect("text after it", stream.text, "ok \ufffd", {"ok ": NOT_FLUSHED})
    whole = byte_stream(layer)
    shown_after_each(whole, b"fine")
    expect("finish() of a whole text", whole.finish(), "fine")


@pytest.mark.task(3)
def test_a_token_may_be_many_characters_or_none(layer: Layer) -> None:
    """Tokens of a real tokenizer are more than a byte; here they are given as such."""
    pieces = [b"Hel", b"lo ", b"\xe2", b"\x82\xac5, ", b"", b"\xc3\xa9t\xc3", b"\xa9"]
    stream = layer.Detokenizer(layer.given(TOY_MODEL).ToyTokenizer(pieces))
    shown = []
    for token_id in range(len(pieces)):
        expect(f"append({token_id}), without stop texts", stream.append(token_id), False)
        shown.append(stream.visible)
    expect(
        f"shown after each of {pieces}",
        shown,
        ["Hel", "Hello ", "Hello ", "Hello €5, ", "Hello €5, ", "Hello €5, ét", "Hello €5, été"],
    )


@pytest.mark.task(3)
def test_a_fork_goes_on_by_itself_from_the_middle_of_a_character(layer: Layer) -> None:
    early = byte_stream(layer)
    early.append(0xC3)
    twin = early.fork()
    twin.append(0xA8)
    early.append(0xA9)
    expect(
        "the texts of child and parent, the child first", (twin.text, early.text), ("è", "é"),
        {("è", "\ufffd"): ONE_DECODER, ("\ufffd", "é"): STARTS_ANEW, ("", "é"): STARTS_ANEW},
    )
    parent = byte_stream(layer)
    shown_after_each(parent, b"ol\xc3")
    child = parent.fork()
    parent.append(0xA9)
    child.append(0xA8)
    expect("the parent's text", parent.text, "olé")
    expect("the child's text", child.text, "olè")
    child.append(0x21)
    expect("the parent's text, after the child's went on", parent.text, "olé")
    expect("the child's text", child.text, "olè!")


@pytest.mark.task(3)
def test_two_streams_have_nothing_in_common(layer: Layer) -> None:
    one, other = byte_stream(layer), byte_stream(layer)
    one.append(0xC3)
    other.append(0x21)
    one.append(0xA9)
    expect(
        "two texts, taken in in turn: é, and !",
        (one.text, other.text),
        ("é", "!"),
        {("\ufffd", "\ufffd!"): SHARED},
    )


@pytest.mark.task(3)
def test_a_fork_goes_on_as_its_parent_would(layer: Layer) -> None:
    parent = byte_stream(layer, ("END",))
    shown_after_each(parent, b"a E\xc3"[:3])
    child = parent.fork()
    expect("shown by a fork after 'a E', with the stop text 'END'", child.visible, "a ", {"a E": NO_STOPS})
    ended = [child.append(byte) for byte in b"ND"]
    expect("appends of N and D to the fork", ended, [False, True], [([False, False], NO_STOPS)])
    expect("the parent's text", parent.text, "a E")
    broken = byte_stream(layer)
    broken.append(0xC3)
    child = broken.fork()
    child.append(0x21)
    wrong = {"!": SWALLOWED, "\ufffd": STARTS_ANEW}
    expect("the text of a fork that was keeping C3, after 21", child.text, "\ufffd!", wrong)


@pytest.mark.task(3)
@settings(max_examples=40)
@given(data=st.binary(max_size=16))
def test_any_bytes_give_the_text_that_they_give_together(layer: Layer, data: bytes) -> None:
    stream = byte_stream(layer)
    shown = shown_after_each(stream, data)
    text = stream.finish()
    expect(f"finish() after the bytes {data!r}", text, data.decode(errors="replace"),
           {data.decode(errors="ignore"): SWALLOWED})
    for earlier, later in itertools.pairwise([*shown, text]):
        expect(
            f"{later!r} begins with {earlier!r}, shown before",
            later.startswith(earlier),
            True,
            {False: BROKEN},
        )


# -- task 4: top-k and top-p ---------------------------------------------------------------------------------


def expect_kept(
    layer: Layer, probs: list[float], kept: set[int], mistakes: dict[tuple[int, ...], str], **params: Any
) -> None:
    """Only the tokens `kept` come up, in the proportion of their probabilities."""
    got = shares(layer, probs, **params)
    what = f"probabilities {probs}, {', '.join(f'{k}={v}' for k, v in params.items())}: "
    came = tuple(token_id for token_id, share in enumerate(got) if share > 0)
    expect(what + "tokens that come up", came, tuple(sorted(kept)), mistakes)
    total = sum(probs[token_id] for token_id in kept)
    expected = [p / total if token_id in kept else 0.0 for token_id, p in enumerate(probs)]
    expect_close(what + "their shares", torch.tensor(got), torch.tensor(expected), 0.006)


@pytest.mark.task(4)
def test_top_k_keeps_the_k_likeliest(layer: Layer) -> None:
    probs = [0.15, 0.5, 0.05, 0.3]
    expect_kept(layer, probs, {1}, {}, top_k=1)
    expect_kept(layer, probs, {1, 3}, {(0, 1): "the first k tokens were kept, not the likeliest",
                                       (0, 2): "the unlikeliest tokens were kept"}, top_k=2)
    expect_kept(layer, probs, {0, 1, 3}, {}, top_k=3)
    for k in (4, 5, 1000):
        expect_kept(layer, probs, {0, 1, 2, 3}, {}, top_k=k)


@pytest.mark.task(4)
def test_tokens_as_likely_as_the_kth_are_kept_too(layer: Layer) -> None:
    expect_kept(
        layer, [0.4, 0.1, 0.2, 0.2, 0.1], {0, 2, 3}, {(0, 2): TIES_DROPPED, (0, 3): TIES_DROPPED}, top_k=2
    )


@pytest.mark.task(4)
def test_what_is_dropped_is_minus_infinity_and_the_rest_is_as_it_was(layer: Layer) -> None:
    inf = math.inf
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0], [1.0, 4.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]])
    layer.keep_top_k(logits, [2, 1, 0])
    expected = [[3.0, -inf, 2.0, 2.0], [-inf, 4.0, -inf, -inf], [0.0, 1.0, 2.0, 3.0]]
    copied = [
        (torch.tensor([[3.0, 1.0, 2.0, 2.0], [1.0, 4.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]]), NOT_IN_PLACE)
    ]
    expect("the logits after keep_top_k(logits, [2, 1, 0])", logits, torch.tensor(expected), copied)
    probs = [0.5, 0.3, 0.15, 0.05]
    logits = logits_of(probs, probs, probs)
    low, kept = logits[0].tolist(), [2, 1, 4]
    layer.keep_top_p(logits, [0.6, 0.4, 1.0])
    wanted = torch.tensor([low[:n] + [-inf] * (4 - n) for n in kept])
    what = f"the logits (of the probabilities {probs}) after keep_top_p(logits, [0.6, 0.4, 1.0])"
    expect(what, logits, wanted, [(logits_of(probs, probs, probs), NOT_IN_PLACE)])


@pytest.mark.task(4)
def test_top_p_keeps_the_smallest_set_that_reaches_p(layer: Layer) -> None:
    probs = [0.15, 0.5, 0.05, 0.3]
    for p, kept in ((0.4, {1}), (0.6, {1, 3}), (0.9, {0, 1, 3}), (0.99, {0, 1, 2, 3}), (0.01, {1})):
        order = sorted(range(4), key=lambda token_id: -probs[token_id])
        less, more = (tuple(sorted(order[: len(kept) + change])) for change in (-1, 1))
        expect_kept(layer, probs, kept, {less: CROSSING_DROPPED, more: ONE_TOO_MANY}, top_p=p)


@pytest.mark.task(4)
def test_a_set_that_reaches_p_exactly_is_enough(layer: Layer) -> None:
    """Probabilities that a float holds exactly."""
    expect_kept(layer, [0.25, 0.5, 0.125, 0.125], {1}, {(0, 1): ONE_TOO_MANY}, top_p=0.5)
    expect_kept(
        layer,
        [0.25, 0.5, 0.125, 0.125],
        {0, 1},
        {(0, 1, 2): ONE_TOO_MANY, (1,): CROSSING_DROPPED},
        top_p=0.75,
    )


@pytest.mark.task(4)
def test_of_equally_likely_tokens_top_p_keeps_the_lower_ids(layer: Layer) -> None:
    expect_kept(
        layer,
        [0.125] * 8,
        {0, 1, 2},
        {(5, 6, 7): "of equally likely tokens the higher ids were kept"},
        top_p=0.375,
    )


@pytest.mark.task(4)
def test_rows_of_a_batch_are_filtered_each_in_its_own_way(layer: Layer) -> None:
    probs = [0.4, 0.3, 0.2, 0.1]
    settings_of_rows: list[dict[str, Any]] = [
        {"top_k": 1},
        {},
        {"top_p": 0.5},
        {"top_k": 3, "top_p": 0.99},
        {"temperature": 0.0},
        {"top_k": 2},
        {"top_k": 0},
    ]
    logits = logits_of(*[probs] * len(settings_of_rows))
    got = layer.sample(logits, [row_of(layer, 0.9999, **each) for each in settings_of_rows])
    expect(f"u = 0.9999, probabilities {probs}, rows with {settings_of_rows}", got, [0, 3, 1, 2, 0, 1, 3],
           [([0, 0, 0, 2, 0, 1, 0], K_ZERO)])
    expect(
        "the logits afterwards",
        logits,
        logits_of(*[probs] * len(settings_of_rows)),
        [(logits.clone(), CHANGED)],
    )


@pytest.mark.task(4)
def test_top_k_comes_before_top_p(layer: Layer) -> None:
    """Of 0.4, 0.3, 0.2, 0.1 top_k=2 leaves 4/7 and 3/7; so 4/7 alone reaches 0.5. Without it, 0.4 doesn't."""
    expect_kept(layer, [0.4, 0.3, 0.2, 0.1], {0}, {}, top_k=2, top_p=0.5)
    expect_kept(layer, [0.4, 0.3, 0.2, 0.1], {0, 1}, {}, top_p=0.5)


@pytest.mark.task(4)
@settings(max_examples=30)
@given(
    weights=st.lists(st.integers(1, 20), min_size=1, max_size=7, unique=True),
    k=st.integers(0, 8),
    twentieths=st.integers(1, 20),
)
def test_any_filters_keep_what_a_sorted_list_says(
    layer: Layer, weights: list[int], k: int, twentieths: int
) -> None:
    """In the middle of each token's part of the line, that token comes up; nothing else has a part of it."""
    top_p = (twentieths - 0.5) / 20
    order = sorted(range(len(weights)), key=lambda token_id: -weights[token_id])[: k or None]
    total, before, kept = sum(weights[token_id] for token_id in order), 0, []
    for token_id in order:
        assume(abs(before / total - top_p) > 1e-3)  # else it is too close to call in float32
        if before / total < top_p:
            kept.append(token_id)
        before += weights[token_id]
    kept.sort()
    ends = list(itertools.accumulate(weights[token_id] for token_id in kept))
    middles = [(end - weights[token_id] / 2) / ends[-1] for token_id, end in zip(kept, ends, strict=True)]
    rows = rows_of(layer, middles, top_k=k, top_p=top_p)
    drawn = layer.sample(logits_of(weights).expand(len(rows), -1), rows)
    expect(f"weights {weights}, top_k={k}, top_p={top_p}: tokens drawn by {middles}", drawn, kept)


# -- task 5: where an answer ends ----------------------------------------------------------------------------


def append_all(stream: Any, data: bytes) -> tuple[list[str], bool]:
    """What is shown after each byte, up to the one that completes a stop text, and whether one did."""
    shown = []
    for byte in data:
        ended = stream.append(byte)
        shown.append(stream.text if ended else stream.visible)
        if ended:
            return shown, True
    return shown, False


@pytest.mark.task(5)
def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(layer: Layer) -> None:
    shown, ended = append_all(byte_stream(layer, ("END",)), b"the END")
    expect("a stop text was completed", ended, True, {False: IN_ONE_TOKEN})
    early = ["t", "th", "the", "the ", "the E", "the EN", "the "]
    expect(
        "shown after each byte of 'the END'",
        shown,
        ["t", "th", "the", *["the "] * 4],
        [(early, SHOWN_TOO_EARLY)],
    )


@pytest.mark.task(5)
@pytest.mark.parametrize(
    ("text", "stop", "first_new", "expected"),
    [
        ("a thing", "th", 3, 2), ("a thing", "th", 4, None), ("a thing", "th", 0, 2), ("thing", "th", 1, 0),
        ("th the th", "th", 7, 7), ("ab ab", "ab", 4, 3), ("abab", "ab", 0, 0), ("aaaa", "aa", 3, 2),
        ("xaa", "aa", 2, 1), ("th the", "th", 4, 3), ("", "th", 0, None), ("t", "th", 0, None),
        ("x", "x", 0, 0),
    ],
)
def test_a_stop_text_is_looked_for_where_it_may_be_new(
    layer: Layer, text: str, stop: str, first_new: int, expected: int | None
) -> None:
    wrong: list[tuple[Any, str]] = []
    if text.find(stop) not in (expected, -1):
        wrong += [(text.find(stop), "one that was complete before was found")]
    if expected is not None:
        wrong += [(text.rfind(stop), "the last place was taken, not the first")] * (
            text.rfind(stop) != expected
        )
        wrong += [(None, IN_ONE_TOKEN), (-1, "from a place below 0, Python counts from the end")]
    what = f"find_stop({text!r}, {stop!r}, first_new={first_new})"
    expect(what, layer.find_stop(text, stop, first_new), expected, wrong)


@pytest.mark.task(5)
@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [("the E", "END", 1), ("the EN", "END", 2), ("the E N", "END", 0), ("END", "END", 0), ("aa", "aa", 1),
     ("xaa", "aab", 2), ("E", "END", 1), ("", "END", 0), ("x", "x", 0), ("aba", "abab", 3)],
)
def test_the_longest_end_that_may_become_a_stop_text(
    layer: Layer, text: str, stop: str, expected: int
) -> None:
    whole = {len(stop): "all of a stop text is no beginning: that much never stands at the end"}
    expect(
        f"overlap({text!r}, {stop!r})",
        layer.overlap(text, stop),
        expected,
        whole if expected < len(stop) else {},
    )


@pytest.mark.task(5)
def test_what_only_began_like_a_stop_text_is_shown_after_all(layer: Layer) -> None:
    shown, ended = append_all(byte_stream(layer, ("END",)), b"EN!ENDE"[:6])
    expect("a stop text was completed", ended, True)
    expect("shown after each byte of 'EN!END'", shown, ["", "", "EN!", "EN!", "EN!", "EN!"],
           [(["E", "EN", "EN!", "EN!E", "EN!EN", "EN!"], SHOWN_TOO_EARLY),
            (["", "", "E", "EN", "EN!", "EN!"], HELD_TOO_LONG)])


@pytest.mark.task(5)
def test_the_longest_beginning_is_held_back(layer: Layer) -> None:
    shown, _ = append_all(byte_stream(layer, ("aab",)), b"xaac")
    expect(
        "stop text 'aab', shown after each byte of 'xaac'",
        shown,
        ["x", "x", "x", "xaac"],
        [(["x", "x", "xa", "xaac"], SHOWN_TOO_EARLY), (["x", "xa", "xaa", "xaac"], SHOWN_TOO_EARLY)],
    )
    shown, _ = append_all(byte_stream(layer, ("abac",)), b"ababac")
    expect("stop text 'abac', shown after each byte of 'ababac'", shown, ["", "", "", "ab", "ab", "ab"])


@pytest.mark.task(5)
def test_the_first_of_several_stop_texts_counts(layer: Layer) -> None:
    pieces = [b"one t", b"wo th", b"ree four", b" fi"]
    stream = layer.Detokenizer(
        layer.given(TOY_MODEL).ToyTokenizer(pieces), ("four", "three", "zz")
    )
    expect("append(b'one t')", (stream.append(0), stream.visible), (False, "one "),
           {(False, "one t"): SHOWN_TOO_EARLY})
    expect("append(b'wo th')", (stream.append(1), stream.visible), (False, "one two "))
    expect(
        "append(b'ree four')",
        (stream.append(2), stream.text),
        (True, "one two "),
        {
            (False, "one two three four"): IN_ONE_TOKEN,
            (True, "one two three "): "a later stop text was taken",
        },
    )


@pytest.mark.task(5)
def test_a_stop_text_may_lie_in_the_middle_of_the_first_token(layer: Layer) -> None:
    pieces = [b"a END and more", b"END"]
    for token_id, text in enumerate(["a ", ""]):
        tokenizer = layer.given(TOY_MODEL).ToyTokenizer(pieces)
        stream = layer.Detokenizer(tokenizer, ("END", "and"))
        what = f"stop texts 'END' and 'and', append of the token {pieces[token_id]!r} to nothing"
        expect(what, (stream.append(token_id), stream.text), (True, text))


@pytest.mark.task(5)
@settings(max_examples=40)
@given(
    text=st.text(alphabet="ab", max_size=10),
    stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=2),
)
def test_any_text_ends_at_the_first_stop_text_to_be_completed(
    layer: Layer, text: str, stop: list[str]
) -> None:
    shown, expected = append_all(byte_stream(layer, tuple(stop)), text.encode())[0], []
    for n in range(1, len(text) + 1):
        done = [n - len(s) for s in stop if text[:n].endswith(s)]
        if done:
            expected.append(text[: min(done)])
            break
        held = max((m for s in stop for m in range(1, len(s)) if text[:n].endswith(s[:m])), default=0)
        expected.append(text[: n - held])
    expect(f"stop texts {stop}, shown after each character of {text!r}", shown, expected)


def sequence_of(
    layer: Layer, prompt: list[int], output: list[int], stop: tuple[str, ...] = (), table: Any = None
) -> Any:
    """A Sequence of the package, over bytes, whose output is as far as `output`."""
    detokenizer = byte_stream(layer, stop)
    for token_id in output:
        detokenizer.append(token_id)
    make = layer.given("minipaged.request").Sequence
    return make([*prompt, *output], len(prompt), detokenizer, table=table)


def after(
    layer: Layer, token_id: int, seq: Any = None, eos: tuple[int, ...] = (), max_len: int = 99, **params: Any
) -> tuple[Any, ...]:
    """append_token, and then: token_ids, text and finish_reason."""
    seq = sequence_of(layer, [1, 2], [65]) if seq is None else seq
    layer.append_token(seq, token_id, layer.given.SamplingParams(**params), eos, max_len)
    return seq.token_ids, seq.detokenizer.text, seq.finish_reason


@pytest.mark.task(5)
def test_a_token_that_ends_nothing_is_appended(layer: Layer) -> None:
    what = "append_token: prompt [1, 2], output [65], then 66"
    expect(what, after(layer, 66), ([1, 2, 65, 66], "AB", None))
    expect(what + ", logprobs", sequence_of(layer, [1], []).logprobs, [])
    seq = sequence_of(layer, [1], [])
    layer.append_token(seq, 66, layer.given.SamplingParams(), (), 99, {66: -0.5})
    expect(what + ", its logprobs", seq.logprobs, [{66: -0.5}])
    layer.append_token(seq, 67, layer.given.SamplingParams(), (), 99, {})
    expect("logprobs={} are logprobs, though of no token", seq.logprobs, [{66: -0.5}, {}])
    layer.append_token(seq, 67, layer.given.SamplingParams(), (), 99)
    expect("no logprobs", seq.logprobs, [{66: -0.5}, {}])
    layer.append_token(seq, 70, layer.given.SamplingParams(), (70,), 99, {70: -1.0})
    lost = [([{66: -0.5}, {}], "the token that stops the answer has logprobs as well")]
    expect("logprobs after an end of text", seq.logprobs, [{66: -0.5}, {}, {70: -1.0}], lost)


@pytest.mark.task(5)
@pytest.mark.parametrize(("token_id", "reason"), [(70, "stop"), (66, "length")])
def test_whoever_ends_frees_its_blocks(layer: Layer, token_id: int, reason: str) -> None:
    pool = layer.given.BlockAllocator(4)
    table = layer.given.BlockTable(pool, 2)
    table.append(3)
    seq = sequence_of(layer, [1, 2], [65], table=table)
    got = after(layer, token_id, seq, eos=(70,), max_len=4)[2]
    kept = {2: "only its finish_reason was set: seq.finish(reason) frees its blocks, too"}
    expect("finish_reason, and blocks free of 4 (it held 2)", got, reason)
    expect("blocks free of 4, after a sequence that held 2 has ended", pool.num_free, 4, kept)


@pytest.mark.task(5)
def test_the_end_of_text_ends_the_answer_unless_it_is_ignored(layer: Layer) -> None:
    what = "append_token of 67, with eos_token_ids=(70, 67)"
    expect(
        what,
        after(layer, 67, eos=(70, 67)),
        ([1, 2, 65, 67], "A", "stop"),
        [(([1, 2, 65, 67], "AC", "stop"), STOP_SHOWN), (([1, 2, 65], "A", "stop"), STOP_LOST)],
    )
    got = after(layer, 67, eos=(70, 67), ignore_eos=True)
    expect(what + " and ignore_eos", got, ([1, 2, 65, 67], "AC", None),
           [(([1, 2, 65, 67], "A", "stop"), EOS_ALWAYS)])


@pytest.mark.task(5)
def test_stop_tokens_and_stop_texts_end_the_answer(layer: Layer) -> None:
    got = after(layer, 68, stop_token_ids=[68], ignore_eos=True)
    expect(
        "append_token of 68, with stop_token_ids=[68]",
        got,
        ([1, 2, 65, 68], "A", "stop"),
        [(([1, 2, 65, 68], "AD", "stop"), STOP_SHOWN), (([1, 2, 65], "A", "stop"), STOP_LOST)],
    )
    seq = sequence_of(layer, [1], [65, 66], stop=("BC",))
    expect(
        "append_token of 67 to the output 'AB', with the stop text 'BC'",
        after(layer, 67, seq),
        ([1, 65, 66, 67], "A", "stop"),
    )


@pytest.mark.task(5)
def test_max_tokens_and_the_model_s_length_end_it_too(layer: Layer) -> None:
    for num_output, reason in ((1, None), (2, "length")):
        seq = sequence_of(layer, [1, 2, 3], [65] * (num_output - 1))
        got = after(layer, 65, seq, max_tokens=2)[2]
        expect(f"finish_reason at {num_output} output tokens of max_tokens=2", got, reason,
               {"length": ONE_LESS} if reason is None else {None: ONE_MORE})
    for max_len, reason in ((5, None), (4, "length")):
        got = after(layer, 65, max_len=max_len, max_tokens=None)[2]
        expect(f"finish_reason at 4 tokens of max_model_len={max_len}", got, reason)


@pytest.mark.task(5)
def test_a_stop_counts_before_a_length(layer: Layer) -> None:
    mistakes = {"length": LENGTH_FIRST}
    expect("end of text, and max_tokens", after(layer, 67, eos=(67,), max_tokens=2)[2], "stop", mistakes)
    expect(
        "stop token, and max_model_len", after(layer, 67, max_len=4, stop_token_ids=[67])[2], "stop", mistakes
    )
    seq = sequence_of(layer, [1], [65], stop=("AB",))
    expect("stop text, and max_tokens", after(layer, 66, seq, max_tokens=2), ([1, 65, 66], "", "stop"),
           [(([1, 65, 66], "", "length"), LENGTH_FIRST)])


@pytest.mark.task(5)
def test_an_error_in_between_leaves_no_half_a_token(layer: Layer) -> None:
    seq = sequence_of(layer, [1], [65])
    try:
        layer.append_token(seq, "no token", layer.given.SamplingParams(), (), 99, {65: -0.5})
    except Exception as error:
        raised = type(error).__name__
        if isinstance(error, NotImplementedError):
            raise
    else:
        raised = "none"
    expect(
        "append_token of a text, which the tokenizer can't turn into bytes: an error", raised != "none", True
    )
    expect("token_ids after it", seq.token_ids, [1, 65],
           [([1, 65, "no token"], "the token was appended before what can fail had passed")])
    half = [([{65: -0.5}], "logprobs were appended before what can fail had passed")]
    expect("logprobs after it", seq.logprobs, [], half)


# -- task 6: the step ----------------------------------------------------------------------------------------


def continuation(prompt: list[int], num_tokens: int) -> list[int]:
    """What the toy model says greedily after a prompt."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(sum((place + 1) * token_id for place, token_id in enumerate(token_ids)) % 256)
    return token_ids[len(prompt) :]


def engine_of(layer: Layer, num_blocks: int = 64, model: Any = None, **options: Any) -> Any:
    """The subject's engine with the toy model and blocks of 4 tokens."""
    model = model or layer.given(TOY_MODEL).ToyModel()
    tokenizer = layer.given(TOY_MODEL).ToyTokenizer()
    return layer.Engine(model, tokenizer, num_blocks=num_blocks, block_size=4, **options)


def add(layer: Layer, engine: Any, name: str, prompt: list[int], num_tokens: int, **params: Any) -> None:
    given_params = {"temperature": 0.0, "ignore_eos": True, "max_tokens": num_tokens} | params
    engine.add_request(name, prompt, layer.given.SamplingParams(**given_params))


def run(layer: Layer, engine: Any, max_steps: int = 200) -> dict[str, Any]:
    """Step to the end, with the invariants checked; the last output of each request."""
    outputs: dict[str, Any] = {}
    for _ in range(max_steps):
        if not engine.has_unfinished_requests():
            return outputs
        outputs |= {output.request_id: output for output in engine.step()}
        layer.given.check_invariants(engine)
    raise Mismatch(
        f"{max_steps} steps", "all requests finished", f"{list(engine.requests)} are not", NOT_FORGOTTEN
    )


def tokens_of(outputs: dict[str, Any]) -> dict[str, list[int]]:
    return {name: output.outputs[0].token_ids for name, output in sorted(outputs.items())}


@pytest.mark.task(6)
def test_one_request_step_by_step(layer: Layer) -> None:
    """1 + 2·2 + 3·3 = 14, then 14 + 4·14 = 70, then 70 + 5·70 = 420 = 164 modulo 256."""
    engine = engine_of(layer)
    expect("step() without requests", engine.step(), [])
    add(layer, engine, "a", [1, 2, 3], 3)
    for number, expected in enumerate(([14], [14, 70], [14, 70, 164]), start=1):
        outputs = engine.step()
        expect(f"how many outputs step {number} returns", len(outputs), 1)
        expect(f"token_ids after step {number}", outputs[0].outputs[0].token_ids, expected)
        expect(f"finished after step {number}", outputs[0].finished, number == 3)
    expect("has_unfinished_requests()", engine.has_unfinished_requests(), False, {True: NOT_FORGOTTEN})
    expect("finish_reason", outputs[0].outputs[0].finish_reason, "length")
    expect("blocks used at the end", engine.stats().blocks_used, 0)
    expect("steps counted, the empty one too", engine.stats().steps, 4)
    expect("tokens computed: 3 of the prompt, and 2", engine.stats().computed_tokens, 5)


@pytest.mark.task(6)
def test_requests_come_and_go_between_any_two_steps(layer: Layer) -> None:
    engine = engine_of(layer, max_num_batched_tokens=6)
    prompts = {"a": [1, 2, 3], "b": list(range(10, 21)), "c": [200, 100], "d": [7] * 9}
    outputs: dict[str, Any] = {}
    for name, prompt in prompts.items():
        add(layer, engine, name, prompt, len(name + str(prompt)) % 5 + 3)
        outputs |= {output.request_id: output for output in engine.step()}
    outputs |= run(layer, engine)
    expected = {
        name: continuation(prompt, len(name + str(prompt)) % 5 + 3) for name, prompt in prompts.items()
    }
    expect(
        "tokens of four requests, prompts computed in chunks of up to 6 tokens", tokens_of(outputs), expected
    )


@pytest.mark.task(6)
def test_the_output_does_not_depend_on_preemptions(layer: Layer) -> None:
    prompts = {"a": [5, 6, 7, 8, 9], "b": [11, 12, 13, 14, 15, 16, 17], "c": [21, 22]}
    engine = engine_of(layer, num_blocks=6)
    for name, prompt in prompts.items():
        add(layer, engine, name, prompt, 12)
    got = tokens_of(run(layer, engine))
    expect(
        "tokens of three requests in 6 blocks",
        got,
        {name: continuation(prompt, 12) for name, prompt in prompts.items()},
    )
    expect("somebody was preempted", engine.stats().preemptions > 0, True)


@pytest.mark.task(6)
def test_copies_are_made_before_the_model_writes(layer: Layer) -> None:
    """Two samples of one prompt share its half-full block; whoever writes first gets a copy of it."""
    engine = engine_of(layer)
    add(layer, engine, "a", [3, 1, 4, 1, 5, 9], 6, n=2, temperature=1e-3, seed=1)
    outputs = run(layer, engine)
    got = [completion.token_ids for completion in outputs["a"].outputs]
    expect(
        "both samples, at a temperature near 0",
        got,
        [continuation([3, 1, 4, 1, 5, 9], 6)] * 2,
        [(got, COPIES_LATE)],
    )
    expect("copies counted", engine.stats().copies, 1)


@pytest.mark.task(6)
def test_all_copies_of_a_step_are_made_with_a_cpu_pool_too(layer: Layer) -> None:
    engine = engine_of(layer, num_cpu_blocks=4, preemption_mode="swap")
    add(layer, engine, "a", [3, 1, 4, 1, 5, 9], 6, n=3, temperature=1e-3, seed=1)
    got = [completion.token_ids for completion in run(layer, engine)["a"].outputs]
    expected = [continuation([3, 1, 4, 1, 5, 9], 6)] * 3
    expect(
        "three samples, at a temperature near 0", got, expected, [(got, "not all copies of a step were made")]
    )
    expect("copies counted", engine.stats().copies, 2)


@pytest.mark.task(6)
def test_a_block_is_swapped_out_before_another_copy_overwrites_it(layer: Layer) -> None:
    """Both samples of a share its half-full block 0. The first to write needs a copy; b gives way for it, and
    the block that b leaves is where the copy goes. Then b comes back, and goes on from what was saved."""
    engine = engine_of(
        layer, num_blocks=2, num_cpu_blocks=2, preemption_mode="swap", enable_prefix_caching=False
    )
    add(layer, engine, "a", [3, 1], 2, n=2, temperature=1e-3, seed=1)
    add(layer, engine, "b", [60, 70], 2)
    outputs = run(layer, engine)
    expect("somebody was swapped out in a step with a copy", engine.stats().preemptions, 1)
    got = [completion.token_ids for name in "ab" for completion in outputs[name].outputs]
    expected = [*[continuation([3, 1], 2)] * 2, continuation([60, 70], 2)]
    expect("the tokens of both samples of a, and of b", got, expected, [(got, SWAP_ORDER)])


@pytest.mark.task(6)
def test_a_block_is_swapped_in_before_it_is_copied(layer: Layer) -> None:
    """Both samples of b share its half-full block; they are swapped out before either has written, and write
    in the step in which they come back."""
    engine = engine_of(
        layer, num_blocks=3, num_cpu_blocks=3, preemption_mode="swap", enable_prefix_caching=False
    )
    add(layer, engine, "a", [3, 1, 4, 1, 5, 9, 2], 3)
    engine.step()
    add(layer, engine, "b", [60, 70], 3, n=2, temperature=1e-3, seed=1)
    outputs = run(layer, engine)
    expect("somebody was swapped out", engine.stats().preemptions, 1)
    got = [completion.token_ids for name in "ab" for completion in outputs[name].outputs]
    expected = [continuation([3, 1, 4, 1, 5, 9, 2], 3), *[continuation([60, 70], 3)] * 2]
    expect("the tokens of a, and of both samples of b", got, expected, [(got, SWAP_ORDER)])


@pytest.mark.task(6)
def test_blocks_move_in_a_step_without_work_too(layer: Layer) -> None:
    """Both samples of a need a block, b's only one is not enough: b is swapped out, a is given up, and nobody
    computes anything. Then b comes back."""
    engine = engine_of(
        layer, num_blocks=6, num_cpu_blocks=6, preemption_mode="swap", enable_prefix_caching=False
    )
    add(layer, engine, "a", [3, 1, 4, 1], 30, n=2, temperature=1.5, seed=1)
    for _ in range(7):
        engine.step()
    add(layer, engine, "b", [60, 70], 6)
    outputs = run(layer, engine)
    expect("b was swapped out", engine.stats().preemptions, 1)
    got = [outputs["a"].outputs[0].finish_reason, outputs["b"].outputs[0].token_ids]
    what = "a's finish_reason and b's tokens"
    expect(
        what,
        got,
        ["capacity", continuation([60, 70], 6)],
        [(got, "blocks were moved only in steps with work")],
    )


@pytest.mark.task(6)
def test_blocks_are_swapped_out_and_in_before_the_model_writes(layer: Layer) -> None:
    prompts = {"a": [5, 6, 7, 8, 9], "b": [11, 12, 13, 14, 15, 16, 17], "c": [21, 22]}
    engine = engine_of(
        layer, num_blocks=6, num_cpu_blocks=12, preemption_mode="swap", enable_prefix_caching=False
    )
    for name, prompt in prompts.items():
        add(layer, engine, name, prompt, 12)
    got = tokens_of(run(layer, engine))
    expected = {name: continuation(prompt, 12) for name, prompt in prompts.items()}
    expect("tokens of three requests in 6 blocks, swapping to 12", got, expected, [(got, SWAP_ORDER)])
    expect("somebody was preempted", engine.stats().preemptions > 0, True)


@pytest.mark.task(6)
def test_full_blocks_are_published(layer: Layer) -> None:
    engine, prompt = engine_of(layer), list(range(30, 43))
    add(layer, engine, "a", prompt, 4)
    first = run(layer, engine)
    second_turn = prompt + first["a"].outputs[0].token_ids + [99]
    add(layer, engine, "b", second_turn, 4)
    second = run(layer, engine)["b"]
    expect(
        "num_cached_tokens of a second turn: 16 tokens have been computed, in 4 full blocks",
        second.num_cached_tokens,
        16,
        {0: NOT_PUBLISHED, 12: "not all full blocks were published"},
    )
    expect("its tokens", second.outputs[0].token_ids, continuation(second_turn, 4))


@pytest.mark.task(6)
def test_the_full_blocks_of_everybody_are_published(layer: Layer) -> None:
    engine, prompts = engine_of(layer), {"a": list(range(30, 39)), "b": list(range(60, 69)), "c": [7] * 9}
    for name, prompt in prompts.items():
        add(layer, engine, name, prompt, 2)
    run(layer, engine)
    for name, prompt in prompts.items():
        add(layer, engine, name, prompt, 2)
    got = {name: output.num_cached_tokens for name, output in sorted(run(layer, engine).items())}
    what = "num_cached_tokens, when three prompts of 9 tokens that ran together come again"
    expect(what, got, {"a": 8, "b": 8, "c": 8}, [(got, "the blocks of one request only were published")])


@pytest.mark.task(6)
def test_only_those_with_something_new_are_returned_and_the_step_is_kept(layer: Layer) -> None:
    engine = engine_of(layer, max_num_seqs=1)
    for name in "ab":
        add(layer, engine, name, [1, 2, 3], 1)
    got = [[output.request_id for output in engine.step()] for _ in range(3)]
    wrong = [([["a", "b"], ["b"], []], "a request that waits was returned, though it has nothing new")]
    expect("who is returned by three steps, one sequence at a time", got, [["a"], ["b"], []], wrong)
    add(layer, engine, "c", [1, 2, 3, 4], 2)
    engine.step()
    old = {0: "self.last_step was not set to this step"}
    expect("last_step.num_tokens after c's prompt of 4 tokens", engine.last_step.num_tokens, 4, old)


@pytest.mark.task(6)
def test_the_model_runs_once_a_step_and_not_without_work(layer: Layer) -> None:
    model = layer.given(TOY_MODEL).ToyModel()
    engine = engine_of(layer, model=model)
    engine.step()
    expect("the model's calls after a step without requests", model.num_calls, 0)
    for name in "abc":
        add(layer, engine, name, [ord(name)] * 4, 5)
    run(layer, engine)
    expect("the model's calls for three requests of 5 tokens each", model.num_calls, 5)


@pytest.mark.task(6)
def test_what_the_pool_cannot_hold_is_said_and_forgotten(layer: Layer) -> None:
    engine = engine_of(layer, num_blocks=2)
    add(layer, engine, "a", [1, 2, 3], 50)
    outputs = run(layer, engine, max_steps=30)
    # The pool has room for 8 tokens. The 9th is sampled still: only its K and V would need a slot.
    expect(
        "token_ids of a request that outgrows 2 blocks",
        outputs["a"].outputs[0].token_ids,
        continuation([1, 2, 3], 6),
    )
    reason = outputs["a"].outputs[0].finish_reason
    expect("its finish_reason", reason, "capacity", {None: CAPACITY_LOST})


@pytest.mark.task(6)
def test_after_a_failure_everybody_goes_on_with_what_they_had(layer: Layer) -> None:
    model = layer.given(TOY_MODEL).ToyModel()
    engine = engine_of(layer, model=model)
    add(layer, engine, "a", [1, 2, 3, 4, 5], 8)
    add(layer, engine, "b", [60, 70], 8)
    for _ in range(3):
        engine.step()
    model.fail_next()
    expect_error("step(), in which the model fails", RuntimeError, engine.step, mistake=NOT_RECOVERED)
    expect(
        "blocks used after it", engine.stats().blocks_used, 0, [(engine.stats().blocks_used, NOT_RECOVERED)]
    )
    got = tokens_of(run(layer, engine))
    expected = {"a": continuation([1, 2, 3, 4, 5], 8), "b": continuation([60, 70], 8)}
    expect("their tokens", got, expected, [(got, NOT_RECOVERED)])


@pytest.mark.task(6)
def test_an_interrupt_is_a_failure_too(layer: Layer) -> None:
    model = layer.given(TOY_MODEL).ToyModel()
    engine = engine_of(layer, model=model)
    add(layer, engine, "a", [1, 2, 3, 4, 5], 8)
    engine.step()
    model.fail_next(interrupt=True)
    try:
        came = "no error"
        engine.step()
    except (KeyboardInterrupt, Exception) as error:  # from another process, it is an exception of that name
        came = type(error).__name__
    wrong = {"no error": "Ctrl-C was swallowed: the error goes on to the caller"}
    expect("step(), in which the reader presses Ctrl-C", came, "KeyboardInterrupt", wrong)
    used = dict.fromkeys((1, 2), "after Ctrl-C the memory did not start anew: it is no Exception")
    expect("blocks used after it", engine.stats().blocks_used, 0, used)
    expect("a's tokens", tokens_of(run(layer, engine)), {"a": continuation([1, 2, 3, 4, 5], 8)})


@pytest.mark.task(6)
def test_an_end_that_a_failure_has_kept_back_is_returned_later_and_first(layer: Layer) -> None:
    """a ends in the second step. In the same step b gets a token that the tokenizer does not know: an error,
    after a has ended and before anybody was told."""
    toys = layer.given(TOY_MODEL)
    tokenizer = toys.ToyTokenizer([bytes([byte]) for byte in range(200)])
    engine = layer.Engine(toys.ToyModel(), tokenizer, num_blocks=64, block_size=4)
    prompts = {
        "a": [1, 2, 3],
        "b": [10, 0, 0, 40],
        "c": [2, 1],
    }  # b: 10 + 160 = 170, then 170 + 850 = 252 mod 256
    for name, num_tokens in (("a", 2), ("b", 9), ("c", 3)):
        add(layer, engine, name, prompts[name], num_tokens)
    engine.step()
    expect_error("the step in which b gets token 252", IndexError, engine.step)
    expect(
        "blocks used after it", engine.stats().blocks_used, 0, [(engine.stats().blocks_used, NOT_RECOVERED)]
    )
    engine.abort("b")
    outputs = engine.step()
    names = [output.request_id for output in outputs]
    lost = "a request that ended in a step that failed was never returned: has it been told to anybody?"
    wrong = [(["c"], lost), (["c", "a"], "those whose end was kept back come first")]
    expect("who is returned by the next step, when b has been aborted", names, ["a", "c"], wrong)
    expect("a's tokens", outputs[0].outputs[0].token_ids, continuation([1, 2, 3], 2))
    expect("who is left", list(engine.requests), ["c"], [(["a", "c"], NOT_FORGOTTEN)])


@pytest.mark.task(6)
def test_samples_depend_on_their_seed_and_not_on_the_batch(layer: Layer) -> None:
    def samples(*others: str) -> list[list[int]]:
        engine = engine_of(layer)
        for other in others:
            add(layer, engine, other, [9, ord(other)], 6, temperature=1.0)
        add(layer, engine, "me", [1, 2, 3], 12, n=2, temperature=2.0, seed=7)
        return [completion.token_ids for completion in run(layer, engine)["me"].outputs]

    alone = samples()
    expect("the two samples of a request with seed 7, among four others", samples("w", "x", "y", "z"), alone)
    expect("the two samples differ from each other", alone[0] != alone[1], True)


@pytest.mark.task(6)
def test_stop_texts_and_aborts_work_in_the_loop(layer: Layer) -> None:
    engine, prompt = engine_of(layer), [40, 50]
    tokens = continuation(prompt, 12)
    text = bytes(tokens).decode(errors="replace")
    place = next(i for i, c in enumerate(text) if c != "\ufffd")
    add(layer, engine, "a", prompt, 12, stop=[text[place]])
    add(layer, engine, "b", prompt, 12)
    engine.step()
    aborted = engine.abort("b")
    expect("finish_reason of an aborted request", aborted.outputs[0].finish_reason, "abort")
    output = run(layer, engine)["a"].outputs[0]
    expect("finish_reason at a stop text", output.finish_reason, "stop")
    expect("its text", output.text, text[:place])


# -- task 7: several tokens a step ---------------------------------------------------------------------------


@pytest.mark.task(7)
def test_a_guess_is_what_followed_last_time(layer: Layer) -> None:
    itself = [([], FOUND_ITSELF)]
    expect("propose([5, 6, 7, 8, 5, 6], 2, 3)", layer.propose([5, 6, 7, 8, 5, 6], 2, 3), [7, 8, 5], itself)
    expect("propose([5, 6, 7, 8, 5, 6], 2, 1)", layer.propose([5, 6, 7, 8, 5, 6], 2, 1), [7])
    expect("propose([1, 2, 3, 1, 2, 4, 1, 2], 2, 2)", layer.propose([1, 2, 3, 1, 2, 4, 1, 2], 2, 2), [4, 1],
           [([3, 1], FIRST_OCCURRENCE)])
    expect("propose([9, 9, 9], 2, 3)", layer.propose([9, 9, 9], 2, 3), [9], [([], FOUND_ITSELF)])
    expect("propose([4, 4], 1, 5)", layer.propose([4, 4], 1, 5), [4], [([], FOUND_ITSELF)])


@pytest.mark.task(7)
def test_without_an_earlier_occurrence_there_is_no_guess(layer: Layer) -> None:
    for token_ids in ([], [1], [1, 2], [1, 2, 3, 4], [2, 1, 2], [5, 5]):
        expect(f"propose({token_ids}, 2, 3)", layer.propose(token_ids, 2, 3), [])
    expect_error("propose([1, 1], 0, 3)", ValueError, lambda: layer.propose([1, 1], 0, 3), [0])
    expect_error("propose([1, 1], 1, -2)", ValueError, lambda: layer.propose([1, 1], 1, -2), [-2])
    token_ids = [1, 2, 1]
    layer.propose(token_ids, 1, 2).append(99)
    expect("the tokens that were passed in, afterwards", token_ids, [1, 2, 1])


def logits_saying(*token_ids: int) -> torch.Tensor:
    logits = torch.zeros(len(token_ids), 10)
    logits[range(len(token_ids)), list(token_ids)] = 1.0
    return logits


@pytest.mark.task(7)
@pytest.mark.parametrize(
    ("proposed", "said", "expected"),
    [([7, 8, 5], (7, 8, 1, 4), [7, 8, 1]), ([7, 8, 1], (7, 8, 1, 4), [7, 8, 1, 4]), ([3], (2, 6), [2]),
     ([], (6,), [6]), ([5, 8, 1], (7, 8, 1, 4), [7])],
)
def test_what_the_model_agrees_with_is_accepted_and_one_more(
    layer: Layer, proposed: list[int], said: tuple[int, ...], expected: list[int]
) -> None:
    num_right = len(expected) - 1
    mistakes = [
        (proposed[:num_right], OWN_LOST),
        (list(said), GUESS_KEPT),
        (proposed[: num_right + 1], GUESS_KEPT),
    ]
    expect(
        f"accept({proposed}, logits that say {list(said)})",
        layer.accept(proposed, logits_saying(*said)),
        expected,
        mistakes,
    )


@pytest.mark.task(7)
def test_of_equally_likely_tokens_the_model_means_the_lowest(layer: Layer) -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0], [2.0, 0.0, 2.0]])
    expect("accept([1], logits) with ties between 1 and 2, 0 and 2", layer.accept([1], logits), [1, 0],
           [([2], LAST_OF_EQUALS), ([1, 2], LAST_OF_EQUALS)])


@pytest.mark.task(7)
@settings(max_examples=40)
@given(
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    ngram_len=st.integers(1, 3),
    num_tokens=st.integers(1, 4),
)
def test_the_text_is_the_greedy_one_in_no_more_steps(
    layer: Layer, prompt: list[int], ngram_len: int, num_tokens: int
) -> None:
    def says(token_ids: list[int]) -> int:  # a model of a kind: it looks at the last two tokens
        return (sum(token_ids[-2:]) + len(token_ids) // 7) % 4

    greedy = list(prompt)
    for _ in range(20):
        greedy.append(says(greedy))
    token_ids, steps = list(prompt), 0
    while len(token_ids) < len(greedy):
        guess = layer.propose(token_ids, ngram_len, num_tokens)
        said = [says(token_ids + guess[:n]) for n in range(len(guess) + 1)]
        token_ids += layer.accept(guess, logits_saying(*said))
        steps += 1
        if steps > 20:
            break
    expect(f"prompt {prompt}, with guesses: the first {len(greedy)} tokens", token_ids[: len(greedy)], greedy)

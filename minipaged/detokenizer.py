"""From tokens to text, one token at a time, never breaking a character and never showing a stop text.

A token may be half a character, and a stop text may begin in one token and end three tokens later. What a
stream has shown cannot be taken back, so text is held back while it may still become either.
"""

from __future__ import annotations

import codecs
import copy
from collections.abc import Sequence as SequenceOf

from minipaged.loading.tokenizer import Tokenizer


class Detokenizer:
    """The text of one sequence's output.

    >>> stream = Detokenizer(Tokenizer.byte_level(), stop=["END"])
    >>> [stream.append(byte) or stream.visible for byte in "é EN!".encode()]
    ['', 'é', 'é ', 'é ', 'é ', 'é EN!']
    """

    def __init__(self, tokenizer: Tokenizer, stop: SequenceOf[str] = ()) -> None:
        self.text = ""
        self._tokenizer = tokenizer
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def append(self, token_id: int) -> bool:
        """Add one token; True if it completes a stop text, which is then cut off together with what follows
        it."""
        first_new = len(self.text)
        self.text += self._decoder.decode(self._tokenizer.token_bytes(token_id))
        ends = [find_stop(self.text, stop, first_new) for stop in self._stop]
        found = [end for end in ends if end is not None]
        if found:
            self.text = self.text[: min(found)]
            self._decoder.reset()
        return bool(found)

    @property
    def visible(self) -> str:
        """The text that no later token can change."""
        return self.text[: len(self.text) - max((overlap(self.text, stop) for stop in self._stop), default=0)]

    def finish(self) -> str:
        """No more tokens: all the text, with a broken last character shown as U+FFFD."""
        self.text += self._decoder.decode(b"", final=True)
        return self.text

    def fork(self) -> Detokenizer:
        """A copy that goes on by itself."""
        child = copy.copy(self)
        child._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        child._decoder.setstate(self._decoder.getstate())
        return child


def find_stop(text: str, stop: str, first_new: int) -> int | None:
    """Where in `text` a stop text begins that was completed by text[first_new:]; None if none was.

    >>> find_stop("a thing", "th", first_new=3), find_stop("a thing", "th", first_new=4)
    (2, None)
    """
    start = text.find(stop, max(0, first_new - len(stop) + 1))
    return None if start < 0 else start


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, though not all of it.

    >>> overlap("the E", "END"), overlap("the EN", "END"), overlap("the E N", "END")
    (1, 2, 0)
    """
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)

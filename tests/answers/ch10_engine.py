"""Wrong answers that chapter 10's grader must reject, and right ones that it must accept."""

from __future__ import annotations

from minipaged.course.answers import Answers

answers = Answers("ch10")

HAS_STATE = "the number depends on how many were drawn before: it must be a function of its arguments"
DISTURBS = "Python's own generator was seeded or used: a generator of its own disturbs nobody"
MIXED_UP = "different (seed, branch, position) give the same number: the key must keep the three apart"
LAST_OF_EQUALS = "of equally likely tokens the last was taken: it must be the lowest id"
IMPOSSIBLE = "a token of probability 0 was drawn: the first sum above the target, not the first that reaches it"
NO_TEMPERATURE = "the temperature was not applied, or multiplied instead of divided"
MISPLACED = "a drawn token was given to another row"
BROKEN = "half a character was shown: its bytes must wait for the rest"
SWALLOWED = "bytes that are no UTF-8 were dropped: each becomes U+FFFD"
NOT_FLUSHED = "what was left of a broken last character was lost: finish shows it as U+FFFD"
ONE_DECODER = "a fork shares its parent's decoder: the bytes of one end up in the text of the other"
STARTS_ANEW = "a fork forgot the bytes that its parent was keeping"
TIES_DROPPED = "a token as likely as the k-th was dropped"
CROSSING_DROPPED = "the token that reaches p was dropped: it belongs to the set"
ONE_TOO_MANY = "one token more than needed was kept: p was reached before it"
K_ZERO = "k = 0 must keep all tokens"
IN_ONE_TOKEN = "the stop text was looked for in the new characters only: it may have begun in a token before"
SHOWN_TOO_EARLY = "the beginning of a stop text was shown: if the rest comes, it can't be taken back"
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
NOT_RECOVERED = "after a failure the memory must start anew (_recover), and the error must go on"
GUESS_KEPT = "a proposed token was kept although the model says another"
OWN_LOST = "the model's own token behind the accepted ones was lost"
FIRST_OCCURRENCE = "the first occurrence was taken, not the last"
FOUND_ITSELF = "the end was found to be an occurrence of itself"

UNIFORM = 'return random.Random(f"{seed}/{branch}/{position}").random()'
ARGMAX = "    token_ids = logits.argmax(dim=-1).tolist()\n"
ROWS = "zip(drawn, draw(logits[drawn], [rows[i] for i in drawn]), strict=True)"
TEMPERATURE = "    logits = logits / column(logits, [row.params.temperature for row in rows])"
SUMS = "    sums = probs.double().cumsum(dim=-1)\n"
DECODE = "        self.text += self._decoder.decode(self._tokenizer.token_bytes(token_id))\n"
DECODER = '        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")\n'
TWIN = """        child._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        child._decoder.setstate(self._decoder.getstate())
"""
STATE = "        child._decoder.setstate(self._decoder.getstate())\n"
FLUSH = '        self.text += self._decoder.decode(b"", final=True)\n'
TOP_K = "            row[row < row.topk(k).values[-1]] = -torch.inf\n"
REACHED = "            reached_before = probs.cumsum(dim=-1) - probs >= p\n"
FIND = "    start = text.find(stop, max(0, first_new - len(stop) + 1))\n"
OVERLAP = "next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)"
STOPS = "    stops = is_eos or token_id in params.stop_token_ids or detokenizer.append(token_id)\n"
CHANGE = "    seq.token_ids.append(token_id)\n    seq.detokenizer = detokenizer\n"
LENGTH = "len(seq.output_token_ids) == params.max_tokens or seq.num_tokens == max_model_len"
ENDS = """    if stops:
        seq.finish("stop")
    elif len(seq.output_token_ids) == params.max_tokens or seq.num_tokens == max_model_len:
        seq.finish("length")
"""
MOVE = "        check_writes(step, self.memory)\n        self._move_blocks(step)\n"
FORWARD = "        logits = self.model.forward(batch, self.kv_cache, self.parts.paged_attention)\n"
PUBLISH = """        for work in step.work:
            self.memory.publish(work.request, work.sequence)
"""
SWAP = """            self.cpu_cache.copy_blocks_from(self.kv_cache, step.swap_out)
            self.kv_cache.copy_blocks_from(self.cpu_cache, step.swap_in)
"""
CHANGED = "            changed = self._reported_late() + step.out_of_capacity + self._take_in(logits, step)\n"
FORGET = """            if request.is_finished:
                del self.requests[request.request_id]
"""
NUM_RIGHT = (
    "    num_right = next((i for i, guess in enumerate(proposed) if guess != chosen[i]), len(proposed))\n"
)

# -- task 1
answers.wrong(
    "the next number of a generator that all share", task=1, mistake=HAS_STATE,
    edits=[("def uniform(", "SHARED = random.Random(0)\n\n\ndef uniform("), (UNIFORM, "return SHARED.random()")],
)
answers.wrong(
    "a generator for each seed, and its next number", task=1, mistake=HAS_STATE,
    edits=[
        ("def uniform(", "GENERATORS: dict[int, random.Random] = {}\n\n\ndef uniform("),
        (UNIFORM, "return GENERATORS.setdefault(seed, random.Random(seed)).random()"),
    ],
)
answers.wrong(
    "seeds Python's own generator", task=1, mistake=DISTURBS,
    edits=[(UNIFORM, 'random.seed(f"{seed}/{branch}/{position}")\n    return random.random()')],
)
answers.wrong(
    "adds the three up", task=1, mistake=MIXED_UP,
    edits=[(UNIFORM, "return random.Random(seed + branch + position).random()")],
)
answers.wrong(
    "joins the digits", task=1, mistake=MIXED_UP,
    edits=[(UNIFORM, 'return random.Random(f"{seed}{branch}{position}").random()')],
)
answers.wrong(
    "a position counts for nothing", task=1, mistake=MIXED_UP,
    edits=[(UNIFORM, 'return random.Random(f"{seed}/{branch}").random()')],
)
answers.wrong(
    "a generator's first number after a small seed times the position", task=1,
    edits=[(UNIFORM, "return ((seed * 1000 + branch) * 1000 + position) % 9973 / 9973")],
)
answers.wrong(
    "draws until the position is reached, and forgets the branch", task=1, mistake=MIXED_UP,
    edits=[
        (
            UNIFORM,
            "generator = random.Random(seed)\n    return [generator.random() for _ in range(position + 1)][-1]",
        )
    ],
)

# -- task 2
answers.wrong(
    "of equals the last", task=2, mistake=LAST_OF_EQUALS,
    edits=[(ARGMAX, "    token_ids = (logits.shape[-1] - 1 - logits.flip(-1).argmax(dim=-1)).tolist()\n")],
)
answers.wrong(
    "everybody is greedy", task=2,
    edits=[("[index for index, row in enumerate(rows) if not row.params.is_greedy]", "[]")],
)
answers.wrong(
    "the first drawn go to the first rows", task=2,
    edits=[(ROWS, "enumerate(draw(logits[drawn], [rows[i] for i in drawn]))")],
)
answers.wrong(
    "logits of some rows, numbers of others", task=2,
    edits=[(ROWS, "zip(drawn, draw(logits[drawn], rows[: len(drawn)]), strict=True)")],
)
answers.wrong("no temperature", task=2, mistake=NO_TEMPERATURE, edits=[(TEMPERATURE, "    logits = logits.clone()")])
answers.wrong(
    "times the temperature", task=2, mistake=NO_TEMPERATURE,
    edits=[(TEMPERATURE, TEMPERATURE.replace("logits / column", "logits * column"))],
)
answers.wrong(
    "the first sum that reaches the target", task=2, mistake=IMPOSSIBLE,
    edits=[("searchsorted(sums, target, right=True).clamp", "searchsorted(sums, target).clamp")],
)
answers.wrong("draws by probabilities that were not cut", task=2, edits=[(SUMS, "    sums = logits.softmax(dim=-1).double().cumsum(dim=-1)\n")])
answers.wrong(
    "takes the number as it is, although the sum may be below 1", task=2,
    edits=[("target = sums[:, -1:] * column(", "target = column(")],
)
answers.wrong("draws the same number for all rows", task=2, edits=[("[row.uniform for row in rows]", "[rows[0].uniform] * len(rows)")])

# -- task 3
answers.wrong(
    "decodes each token alone", task=3, mistake=BROKEN,
    edits=[(DECODE, "        self.text += self._tokenizer.token_bytes(token_id).decode(errors=\"replace\")\n")],
)
answers.wrong(
    "decodes all bytes anew, half a character too", task=3, mistake=BROKEN,
    edits=[
        (DECODER, DECODER + "        self._bytes = b''\n"),
        (DECODE, "        self._bytes += self._tokenizer.token_bytes(token_id)\n        self.text = self._bytes.decode(errors=\"replace\")\n"),
    ],
)
answers.wrong(
    "ignores what is no text", task=3, mistake=SWALLOWED,
    edits=[(DECODER, DECODER.replace("replace", "ignore"))],
)
answers.wrong("does not flush", task=3, mistake=NOT_FLUSHED, edits=[(FLUSH, "")])
answers.wrong("a fork with the same decoder", task=3, mistake=ONE_DECODER, edits=[(TWIN, "")])
answers.wrong("a fork with an empty decoder", task=3, mistake=STARTS_ANEW, edits=[(STATE, "")])
answers.wrong("a fork that is no copy", task=3, edits=[("        child = copy.copy(self)\n", "        child = self\n")])
answers.wrong("a fork without text", task=3, edits=[("        child = copy.copy(self)\n", "        child = Detokenizer(self._tokenizer, self._stop)\n")])

# -- task 4
answers.wrong(
    "exactly k, whoever is equal", task=4, mistake=TIES_DROPPED,
    edits=[(TOP_K, "            row[row.sort(descending=True, stable=True).indices[k:]] = -torch.inf\n")],
)
answers.wrong("k of 0 keeps one", task=4, mistake=K_ZERO, edits=[("if 0 < k < len(row):", "if (k := max(k, 1)) < len(row):")])
answers.wrong("k is not compared with V", task=4, edits=[("if 0 < k < len(row):", "if 0 < k:")])
answers.wrong("keeps the first k ids", task=4, edits=[(TOP_K, "            row[k:] = -torch.inf\n")])
answers.wrong("the same k for all rows", task=4, edits=[(TOP_K, TOP_K.replace("topk(k)", "topk(max(top_k))"))])
answers.wrong(
    "drops the token that crosses p", task=4, mistake=CROSSING_DROPPED,
    edits=[(REACHED, "            reached_before = probs.cumsum(dim=-1) > p\n            reached_before[0] = False\n")],
)
answers.wrong(
    "reaching p exactly is not enough", task=4, mistake=ONE_TOO_MANY,
    edits=[(REACHED, REACHED.replace(">= p", "> p"))],
)
answers.wrong(
    "drops everything if the first reaches p", task=4,
    edits=[(REACHED, "            reached_before = probs.cumsum(dim=-1) >= p\n")],
)
answers.wrong("drops by rank, not by id", task=4, edits=[("            row[order[reached_before]] = -torch.inf\n", "            row[reached_before] = -torch.inf\n")])
answers.wrong("the unlikeliest first", task=4, edits=[("row.softmax(dim=-1).sort(descending=True, stable=True)", "row.softmax(dim=-1).sort(stable=True)")])
answers.wrong(
    "of equals the higher id first", task=4,
    mistake="of equally likely tokens the higher ids were kept",
    edits=[("            probs, order = row.softmax(dim=-1).sort(descending=True, stable=True)\n",
            "            probs, order = row.softmax(dim=-1).flip(0).sort(descending=True, stable=True)\n            order = len(row) - 1 - order\n")],
)
answers.wrong("filters a copy", task=4, edits=[("    for row, p in zip(logits, top_p, strict=True):", "    for row, p in zip(logits.clone(), top_p, strict=True):")])

# -- task 5
answers.wrong(
    "looks in the new characters only", task=5, mistake=IN_ONE_TOKEN,
    edits=[(FIND, "    start = text.find(stop, first_new)\n")],
)
answers.wrong("one character too late", task=5, edits=[(FIND, FIND.replace("+ 1", "+ 2"))])
answers.wrong("below 0 is the end to Python", task=5, edits=[(FIND, "    start = text.find(stop, first_new - len(stop) + 1)\n")])
answers.wrong("minus one for nowhere", task=5, edits=[("    return None if start < 0 else start\n", "    return start\n")])
answers.wrong("a beginning at 0 is none", task=5, edits=[("    return None if start < 0 else start\n", "    return start if start > 0 else None\n")])
answers.wrong("holds nothing back", task=5, mistake=SHOWN_TOO_EARLY, edits=[(OVERLAP, "0")])
answers.wrong(
    "the shortest beginning", task=5, mistake=SHOWN_TOO_EARLY,
    edits=[(OVERLAP, OVERLAP.replace("range(len(stop) - 1, 0, -1)", "range(1, len(stop))"))],
)
answers.wrong("always holds len(stop) - 1", task=5, edits=[(OVERLAP, "min(len(stop) - 1, len(text))")])
answers.wrong("always the end of text", task=5, mistake=EOS_ALWAYS, edits=[(" and not params.ignore_eos\n", "\n")])
answers.wrong("stop tokens only if there is no end of text", task=5, edits=[("is_eos or token_id in params.stop_token_ids or det", "is_eos or det")])
answers.wrong(
    "asks the detokenizer first", task=5, mistake=STOP_SHOWN,
    edits=[(STOPS, "    stops = detokenizer.append(token_id) or is_eos or token_id in params.stop_token_ids\n")],
)
answers.wrong(
    "a stop token is not kept", task=5, mistake=STOP_LOST,
    edits=[(CHANGE, "    if not stops:\n        seq.token_ids.append(token_id)\n    seq.detokenizer = detokenizer\n")],
)
answers.wrong(
    "a length before a stop", task=5, mistake=LENGTH_FIRST,
    edits=[(ENDS, f'    if {LENGTH}:\n        seq.finish("length")\n    elif stops:\n        seq.finish("stop")\n')],
)
answers.wrong("one token more", task=5, mistake=ONE_MORE, edits=[(LENGTH, LENGTH.replace("== params.max_tokens", "- 1 == params.max_tokens"))])
answers.wrong("one token less", task=5, mistake=ONE_LESS, edits=[(LENGTH, LENGTH.replace("== params.max_tokens", "+ 1 == params.max_tokens"))])
answers.wrong("counts the prompt", task=5, edits=[(LENGTH, LENGTH.replace("len(seq.output_token_ids)", "seq.num_tokens"))])
answers.wrong("forgets the model's length", task=5, edits=[(LENGTH, LENGTH.partition(" or ")[0])])
answers.wrong("changes first", task=5,
    edits=[(CHANGE, ""), ("    detokenizer = seq.detokenizer.fork()\n", "    seq.token_ids.append(token_id)\n    detokenizer = seq.detokenizer\n")],
)
answers.wrong("empty logprobs are none", task=5, edits=[("    if logprobs is not None:\n", "    if logprobs:\n")])
answers.wrong("the fork is thrown away", task=5, edits=[(CHANGE, "    seq.token_ids.append(token_id)\n")])

# -- task 6
answers.wrong(
    "copies after the model", task=6, mistake=COPIES_LATE,
    edits=[(MOVE, "        check_writes(step, self.memory)\n"), (FORWARD, FORWARD + "        self._move_blocks(step)\n")],
)
answers.wrong("no copies", task=6, mistake=COPIES_LATE, edits=[("        self.kv_cache.copy_blocks(step.copies)\n", "")])
answers.wrong(
    "no swapping", task=6, mistake=SWAP_ORDER,
    edits=[(SWAP, "            pass\n")],
)
answers.wrong(
    "swaps out what the model has written over", task=6, mistake=SWAP_ORDER,
    edits=[
        (SWAP, "            self.kv_cache.copy_blocks_from(self.cpu_cache, step.swap_in)\n"),
        (FORWARD, FORWARD + "        if self.cpu_cache is not None:\n            self.cpu_cache.copy_blocks_from(self.kv_cache, step.swap_out)\n"),
    ],
)
answers.wrong(
    "swaps in the wrong direction", task=6, mistake=SWAP_ORDER,
    edits=[(SWAP, SWAP.replace("self.cpu_cache.copy_blocks_from(self.kv_cache, step.swap_out)", "self.kv_cache.copy_blocks_from(self.cpu_cache, step.swap_out)"))],
)
answers.wrong("publishes nothing", task=6, mistake=NOT_PUBLISHED, edits=[(PUBLISH, "")])
answers.wrong("keeps the finished", task=6, mistake=NOT_FORGOTTEN, edits=[(FORGET, "            pass\n")])
answers.wrong("forgets everybody who changed", task=6, edits=[(FORGET, "            del self.requests[request.request_id]\n")])
answers.wrong(
    "forgets the requests too large for the pool", task=6,
    edits=[(CHANGED, CHANGED.replace("step.out_of_capacity + ", ""))],
)
answers.wrong(
    "goes on after a failure", task=6, mistake=NOT_RECOVERED,
    edits=[("            self._recover()\n            raise\n", "            raise\n")],
)
answers.wrong(
    "swallows the error", task=6, mistake=NOT_RECOVERED,
    edits=[("            self._recover()\n            raise\n", "            self._recover()\n            return []\n")],
)
answers.wrong(
    "runs the model without work", task=6,
    edits=[("        if not step.work:\n            return torch.empty(0, self.model.config.vocab_size)\n", "")],
)
answers.wrong("counts no step", task=6, edits=[("        self._count(step, time.perf_counter() - started)\n", "")])
answers.wrong("runs the model twice", task=6, edits=[(FORWARD, FORWARD + FORWARD)])
answers.wrong(
    "reports only those that have ended", task=6,
    edits=[("for request in changed]", "for request in changed if request.is_finished]")],
)

# -- task 7
answers.wrong("the first occurrence", task=7, mistake=FIRST_OCCURRENCE,
    edits=[("range(len(token_ids) - ngram_len - 1, -1, -1)", "range(len(token_ids) - ngram_len)")])
answers.wrong("no overlap with the end", task=7, mistake=FOUND_ITSELF,
    edits=[("range(len(token_ids) - ngram_len - 1, -1, -1)", "range(len(token_ids) - ngram_len, -1, -1)")])
answers.wrong("keeps the wrong guess", task=7, mistake=GUESS_KEPT, edits=[("return chosen[: num_right + 1]", "return chosen")])
answers.wrong("gives only what was accepted", task=7, mistake=OWN_LOST, edits=[("return chosen[: num_right + 1]", "return chosen[:num_right]")])
answers.wrong("accepts right guesses behind a wrong one", task=7,
    edits=[(NUM_RIGHT, "    num_right = sum(guess == said for guess, said in zip(proposed, chosen, strict=False))\n")])
answers.wrong("guesses as many as there are", task=7, edits=[("return token_ids[end : end + num_tokens]", "return token_ids[end:]")])

# -- found by trying to break the grader: arguments changed, things shared, cases at the edge

answers.wrong("three numbers in one, 12 bits for a position", task=1, edits=[
    ('    return random.Random(f"{seed}/{branch}/{position}").random()\n',
     "    return random.Random((seed << 24) + (branch << 12) + position).random()\n"),
])
answers.wrong("three numbers in one, 1,000 for a position", task=1, edits=[
    ('    return random.Random(f"{seed}/{branch}/{position}").random()\n',
     "    return random.Random(seed * 1_000_000 + branch * 1000 + position).random()\n"),
])
answers.wrong("rounds to hundredths", task=1, edits=[
    ('    return random.Random(f"{seed}/{branch}/{position}").random()\n',
     '    return round(random.Random(f"{seed}/{branch}/{position}").random(), 2)\n'),
])
answers.wrong("keeps 32 bits of the seed", task=1, edits=[
    ('    return random.Random(f"{seed}/{branch}/{position}").random()\n',
     '    return random.Random(f"{seed % 2**32}/{branch}/{position}").random()\n'),
])
answers.wrong("drops the seed's sign", task=1, edits=[
    ('    return random.Random(f"{seed}/{branch}/{position}").random()\n',
     '    return random.Random(f"{abs(seed)}/{branch}/{position}").random()\n'),
])
answers.wrong("takes seed 0 for none", task=1, edits=[
    ('    return random.Random(f"{seed}/{branch}/{position}").random()\n',
     '    return random.Random(f"{seed or 1}/{branch}/{position}").random()\n'),
])
answers.wrong("steps of one length", task=1, edits=[
    ('    return random.Random(f"{seed}/{branch}/{position}").random()\n',
     '    return (random.Random(f"{seed}/{branch}").random() + position * 0.6180339887498949) % 1\n'),
])
answers.wrong("takes a low temperature for greedy", task=2, edits=[
    ("    drawn = [index for index, row in enumerate(rows) if not row.params.is_greedy]\n",
     "    drawn = [index for index, row in enumerate(rows) if row.params.temperature > 0.1]\n"),
])
answers.wrong("divides only if it must", task=2, edits=[
    ("        for index, token_id in zip(drawn, draw(logits[drawn], [rows[i] for i in drawn]), strict=True):\n",
     "        for index, token_id in zip(drawn, draw(logits if len(drawn) == len(rows) else logits[drawn], [rows[i] for i in drawn]), strict=True):\n"),
    ("    logits = logits / column(logits, [row.params.temperature for row in rows])\n",
     '''    temperatures = [row.params.temperature for row in rows]
    if any(t != 1 for t in temperatures):
        logits = logits / column(logits, temperatures)
'''),
])
answers.wrong("one temperature for all rows", task=2, edits=[
    ("    logits = logits / column(logits, [row.params.temperature for row in rows])\n",
     "    logits = logits / rows[0].params.temperature\n"),
])
answers.wrong("sums in float32", task=2, edits=[
    ("    sums = probs.double().cumsum(dim=-1)\n",
     "    sums = probs.cumsum(dim=-1).double()\n"),
])
answers.wrong("one decoder for all streams", task=3, edits=[
    ('''
class Detokenizer:
''',
     '''
_DECODER = codecs.getincrementaldecoder("utf-8")(errors="replace")


class Detokenizer:
'''),
    ('        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")\n',
     "        self._decoder = _DECODER\n"),
])
answers.wrong("a fork that swallows broken bytes", task=3, edits=[
    ('        child._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")\n',
     '        child._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")\n'),
])
answers.wrong("a fork without stop texts", task=3, edits=[
    ("        child._decoder.setstate(self._decoder.getstate())\n",
     '''        child._decoder.setstate(self._decoder.getstate())
        child._stop = ()
'''),
])
answers.wrong("a large negative number for minus infinity", task=4, edits=[
    ("            row[row < row.topk(k).values[-1]] = -torch.inf\n",
     "            row[row < row.topk(k).values[-1]] = -1e9\n"),
])
answers.wrong("normalises what is left", task=4, edits=[
    ("            row[order[reached_before]] = -torch.inf\n",
     '''            row[order[reached_before]] = -torch.inf
            row -= row.logsumexp(-1)
'''),
])
answers.wrong("looks from the beginning of the text", task=5, edits=[
    ('''    start = text.find(stop, max(0, first_new - len(stop) + 1))
    return None if start < 0 else start
''',
     '''    start = text.find(stop)
    return None if start < 0 or start + len(stop) <= first_new else start
'''),
])
answers.wrong("looks one character too early", task=5, edits=[
    ("    start = text.find(stop, max(0, first_new - len(stop) + 1))\n",
     "    start = text.find(stop, max(0, first_new - len(stop)))\n"),
])
answers.wrong("the last place", task=5, edits=[
    ("    start = text.find(stop, max(0, first_new - len(stop) + 1))\n",
     "    start = text.rfind(stop, max(0, first_new - len(stop) + 1))\n"),
])
answers.wrong("the whole stop text is a beginning of itself", task=5, edits=[
    ("    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)\n",
     "    return next((n for n in range(len(stop), 0, -1) if text.endswith(stop[:n])), 0)\n"),
])
answers.wrong("logprobs before what can fail", task=5, edits=[
    ('''    detokenizer = seq.detokenizer.fork()
    is_eos = token_id in eos_token_ids and not params.ignore_eos
    # `or` asks the detokenizer only if the first two say no: a stop token's text never gets into the output.
    stops = is_eos or token_id in params.stop_token_ids or detokenizer.append(token_id)
    seq.token_ids.append(token_id)
    seq.detokenizer = detokenizer
    if logprobs is not None:
        seq.logprobs.append(logprobs)
    if stops:
        seq.finish("stop")
    elif len(seq.output_token_ids) == params.max_tokens or seq.num_tokens == max_model_len:
        seq.finish("length")
''',
     '''    if logprobs is not None:
        seq.logprobs.append(logprobs)
    detokenizer = seq.detokenizer.fork()
    is_eos = token_id in eos_token_ids and not params.ignore_eos
    # `or` asks the detokenizer only if the first two say no: a stop token's text never gets into the output.
    stops = is_eos or token_id in params.stop_token_ids or detokenizer.append(token_id)
    seq.token_ids.append(token_id)
    seq.detokenizer = detokenizer
    if stops:
        seq.finish("stop")
    elif len(seq.output_token_ids) == params.max_tokens or seq.num_tokens == max_model_len:
        seq.finish("length")
'''),
])
answers.wrong("sets the reason and keeps the blocks", task=5, edits=[
    ('        seq.finish("stop")\n',
     '        seq.finish_reason = "stop"\n'),
])
answers.wrong("no logprobs for the last token", task=5, edits=[
    ("    if logprobs is not None:\n",
     "    if logprobs is not None and not stops:\n"),
])
answers.wrong("Ctrl-C is no Exception", task=6, edits=[
    ("        except BaseException:\n",
     "        except Exception:\n"),
])
answers.wrong("those whose end was kept back come last", task=6, edits=[
    ("            changed = self._reported_late() + step.out_of_capacity + self._take_in(logits, step)\n",
     "            changed = self._take_in(logits, step) + step.out_of_capacity + self._reported_late()\n"),
])
answers.wrong("forgets those whose end was kept back", task=6, edits=[
    ("            changed = self._reported_late() + step.out_of_capacity + self._take_in(logits, step)\n",
     "            changed = step.out_of_capacity + self._take_in(logits, step)\n"),
])
answers.wrong("sampling is not guarded", task=6, edits=[
    ("            changed = self._reported_late() + step.out_of_capacity + self._take_in(logits, step)\n",
     ''''''),
    ("            raise\n",
     '''            raise
        changed = self._reported_late() + step.out_of_capacity + self._take_in(logits, step)
'''),
])
answers.wrong("does not keep the step", task=6, edits=[
    ("        self.last_step, self._ended_in_failure = step, []\n",
     "        self._ended_in_failure = []\n"),
])
answers.wrong("returns everybody", task=6, edits=[
    ("        return [request.output() for request in changed]\n",
     "        return [request.output() for request in [*self.requests.values(), *[c for c in changed if c.is_finished]]]\n"),
])
answers.wrong("moves blocks only if there is work", task=6, edits=[
    ("        self._move_blocks(step)\n",
     ''''''),
    ("            return torch.empty(0, self.model.config.vocab_size)\n",
     '''            return torch.empty(0, self.model.config.vocab_size)
        self._move_blocks(step)
'''),
])
answers.wrong("publishes the first request's blocks only", task=6, edits=[
    ("        for work in step.work:\n",
     "        for work in step.work[:1]:\n"),
])
answers.wrong("copies only without a CPU pool", task=6, edits=[
    ("        self.kv_cache.copy_blocks(step.copies)\n",
     '''        else:
            self.kv_cache.copy_blocks(step.copies)
'''),
])
answers.wrong("copies before it swaps out", task=6, edits=[
    ('''        if self.cpu_cache is not None:
            # Out first: what is swapped out now may be overwritten by a copy of this very step. And in before
            # the copies, which may read what has just come in. (Our scheduler swaps nobody in while it swaps
            # somebody out. With one that does, the order of these two would matter as well.)
            self.cpu_cache.copy_blocks_from(self.kv_cache, step.swap_out)
            self.kv_cache.copy_blocks_from(self.cpu_cache, step.swap_in)
        self.kv_cache.copy_blocks(step.copies)
''',
     '''        self.kv_cache.copy_blocks(step.copies)
        if self.cpu_cache is not None:
            self.cpu_cache.copy_blocks_from(self.kv_cache, step.swap_out)
            self.kv_cache.copy_blocks_from(self.cpu_cache, step.swap_in)
'''),
])
answers.wrong("copies before it swaps in", task=6, edits=[
    ('''            # Out first: what is swapped out now may be overwritten by a copy of this very step. And in before
            # the copies, which may read what has just come in. (Our scheduler swaps nobody in while it swaps
            # somebody out. With one that does, the order of these two would matter as well.)
            self.cpu_cache.copy_blocks_from(self.kv_cache, step.swap_out)
            self.kv_cache.copy_blocks_from(self.cpu_cache, step.swap_in)
        self.kv_cache.copy_blocks(step.copies)
''',
     '''            self.cpu_cache.copy_blocks_from(self.kv_cache, step.swap_out)
        self.kv_cache.copy_blocks(step.copies)
        if self.cpu_cache is not None:
            self.kv_cache.copy_blocks_from(self.cpu_cache, step.swap_in)
'''),
])
answers.wrong("makes one copy a step", task=6, edits=[
    ("        self.kv_cache.copy_blocks(step.copies)\n",
     "        self.kv_cache.copy_blocks(step.copies[:1])\n"),
])
answers.wrong("a shorter n-gram if the text is short", task=7, edits=[
    ('            raise ValueError(f"{name} must be at least 1, got {value}")\n',
     '''            raise ValueError(f"{name} must be at least 1, got {value}")
    ngram_len = min(ngram_len, len(token_ids) - 1)
    if ngram_len < 1:
        return []
'''),
])
answers.wrong("of equals the last, when it checks a guess", task=7, edits=[
    ("    chosen = logits.argmax(dim=-1).tolist()\n",
     "    chosen = [int((r == r.max()).nonzero()[-1]) for r in logits]\n"),
])

# -- right ones

answers.right(
    "a hash for the number, whole texts for the stream",
    edits=[
        (UNIFORM, 'digest = hashlib.blake2b(repr((seed, branch, position)).encode(), digest_size=8).digest()\n    return (int.from_bytes(digest, "big") >> 11) / 2**53'),
        ("import codecs\n", "import codecs\nimport hashlib\n"),
        (FIND, "    at = [n for n in range(len(text)) if text.startswith(stop, n) and n + len(stop) > first_new]\n    start = min(at, default=-1)\n"),
        (OVERLAP, "max((n for n in range(len(stop)) if stop[:n] == text[len(text) - n :] and n <= len(text)), default=0)"),
    ],
)
answers.right(
    "bytes kept by hand",
    edits=[
        (DECODER, "        self._decoder = Pending()\n"),
        (TWIN, "        child._decoder = Pending()\n        child._decoder.kept = self._decoder.kept\n"),
        ("class Detokenizer:\n", '''class Pending:
    """The bytes of a character that is not complete; it may be one, two or three of them."""

    def __init__(self):
        self.kept = b""

    def reset(self):
        self.kept = b""

    def decode(self, data, final=False):
        data = self.kept + data
        self.kept = b""
        for length in (1, 2, 3):
            tail = data[-length:] if len(data) >= length else b""
            if not final and tail and self.is_beginning(tail):
                data, self.kept = data[:-length], tail
                break
        return data.decode(errors="replace")

    @staticmethod
    def is_beginning(tail):
        fills = ((b"\\x80",), (b"\\x90", b"\\xa0", b"\\xbf"), (b"\\x80", b"\\xbf"), (b"\\x80",))
        first = tail[0]
        length = 2 if 0xC2 <= first <= 0xDF else 3 if 0xE0 <= first <= 0xEF else 4 if 0xF0 <= first <= 0xF4 else 0
        if len(tail) >= length:
            return False
        for byte in (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF):
            whole = tail + bytes([byte]) + b"\\x80" * (length - len(tail) - 1)
            try:
                whole.decode()
                return True
            except UnicodeDecodeError:
                pass
        return False


class Detokenizer:
'''),
    ],
)
answers.right(
    "rows one by one, in plain Python",
    edits=[
        (SUMS, "    kept = probs.double()\n    result = []\n    for row, weights in zip(rows, kept.tolist(), strict=True):\n"
               "        target, total, last = row.uniform * sum(weights), 0.0, 0\n        for token_id, weight in enumerate(weights):\n"
               "            total += weight\n            last = token_id if weight > 0 else last\n            if total > target:\n                break\n"
               "        result.append(token_id if total > target else last)\n    return result\n    sums = probs\n"),
        (ARGMAX, "    token_ids = [row.index(max(row)) for row in logits.tolist()]\n"),
        (TOP_K, "            least = sorted(row.tolist(), reverse=True)[k - 1]\n            row.masked_fill_(row < least, float(\"-inf\"))\n"),
        ("            probs, order = row.softmax(dim=-1).sort(descending=True, stable=True)\n",
         "            probs = row.softmax(dim=-1)\n            order = sorted(range(len(row)), key=lambda i: (-probs[i].item(), i))\n"
         "            total = 0.0\n            for i in order:\n                if total >= p:\n                    row[i] = -torch.inf\n"
         "                total += probs[i].item()\n            continue\n"),
        (REACHED, ""),
        ("            row[order[reached_before]] = -torch.inf\n", ""),
    ],
)
answers.right(
    "another loop, and guesses by a dictionary",
    edits=[
        ("        self._count(step, time.perf_counter() - started)\n        return [request.output() for request in changed]\n",
         "        outputs = [request.output() for request in changed]\n        self._count(step, time.perf_counter() - started)\n        return outputs\n"),
        (FORGET, "            if request.is_finished and request.request_id in self.requests:\n                self.requests.pop(request.request_id)\n"),
        # Published before the model runs: nobody looks for a block in between, and a failure forgets all.
        (PUBLISH, ""),
        (MOVE, "        self._move_blocks(step)\n        check_writes(step, self.memory)\n" + PUBLISH),
        ("    for start in range(len(token_ids) - ngram_len - 1, -1, -1):\n        end = start + ngram_len\n"
         "        if token_ids[start:end] == ngram:\n            return token_ids[end : end + num_tokens]\n    return []\n",
         "    ends = {tuple(token_ids[end - ngram_len : end]): end for end in range(ngram_len, len(token_ids))}\n"
         "    end = ends.get(tuple(ngram), len(token_ids))\n    return token_ids[end : end + num_tokens]\n"),
        (NUM_RIGHT, "    num_right = 0\n    while num_right < len(proposed) and proposed[num_right] == chosen[num_right]:\n        num_right += 1\n"),
        ("    return chosen[: num_right + 1]", "    return [*proposed[:num_right], chosen[num_right]]"),
    ],
)

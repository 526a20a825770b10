"""Wrong answers that chapter 12's grader must reject, and right ones that it must accept."""

from minipaged.course.answers import Answers

NO_KERNEL = "it was computed without a kernel"
ROUNDED_UP = "the number of pieces was rounded up: some processors get a third program"
TOO_SHORT = "a piece is shorter than MIN_SPLIT_LEN tokens"
WITHOUT_LIMIT = "more pieces than MAX_SPLITS"
ONLY_K = "V was not copied, or K was not"
BACKWARDS = "dst was copied to src"
FIRST_LAYER = "only layer 0 was copied"
PLAIN_MEAN = "the plain mean of the pieces: their weights were not used"
BASE_E = "e^w was taken: weights are powers of two"
NOT_DIVIDED = "the weighted pieces were summed, and not divided by the sum of weights"
GHOSTS = "lanes without a piece counted as pieces of weight 2^0"
NATURAL_LOG = "the weight is a natural logarithm: log2 is asked for"
WITHOUT_HIGHEST = "the weight is log2(total): `highest`, by which total was measured, is missing"
ACC_STORED = "the piece was not divided by its total"
NAN_IN_EMPTY = "an empty piece is 0 / 0"
READ_TWICE = "some positions belong to two pieces"
UPPER_LEFT = "a chunk's queries were counted from position 0: the context before them was forgotten"
NOT_ITSELF = "a query does not see itself"
NO_MASK = "queries see tokens that come after them"
READS_ALL = "every tile of queries reads the whole context"
PREFIX_PER_SEQUENCE = "the shared blocks were read once for each sequence"

WANTED = "    wanted = PROGRAMS_PER_PROCESSOR * num_processors // max(1, num_programs)\n"
CHOSEN = "    return max(1, min(wanted, max_context_len // MIN_SPLIT_LEN, MAX_SPLITS))\n"
ROWS = "    offs_row = tl.program_id(2) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)"
SLOT = "    slot, head = (offs_row // G).to(tl.int64)[:, None], (offs_row % G).to(tl.int64)[:, None]\n"
COPY_MASK = "    mask = (offs_row < B * G)[:, None] & (offs_d < D)\n"
OFFS_K = "    offs_k = layer * stride_kl + slot * stride_kb + head * stride_kg + offs_d * stride_kd\n"
OFFS_V = "    offs_v = layer * stride_vl + slot * stride_vb + head * stride_vg + offs_d * stride_vd\n"
LOAD_K = "    k = tl.load(k_cache_ptr + src * stride_kn + offs_k, mask=mask)\n"
STORE_K = "    tl.store(k_cache_ptr + dst * stride_kn + offs_k, k, mask=mask)\n"
LOAD_V = "    v = tl.load(v_cache_ptr + src * stride_vn + offs_v, mask=mask)\n"
STORE_V = "    tl.store(v_cache_ptr + dst * stride_vn + offs_v, v, mask=mask)\n"
LOAD_W = '    weights = tl.load(weights_ptr + offs_p, mask=exists, other=float("-inf"))\n'
HIGHEST = "    highest = tl.max(weights, axis=0)\n"
EXP = '    weights = tl.exp2(weights - tl.where(highest > float("-inf"), highest, 0.0))'
MERGE_MASK = "    mask = exists[:, None] & (offs_d < D)[None, :]\n    pieces ="
MERGE_LOAD = "    pieces = tl.load(pieces_ptr + offs_p[:, None] * D + offs_d[None, :], mask=mask, other=0.0)\n"
MEAN = "    out = tl.sum(weights[:, None] * pieces, axis=0) / tl.where(total > 0, total, 1.0)\n"
OUT_AT = "    offs_o = seq * stride_os + head * stride_oh + offs_d * stride_od\n    tl.store(out_ptr + offs_o, out.to(out_ptr.dtype.element_ty), mask=offs_d < D)\n"
SPLIT_LEN = "    split_len = tl.cdiv(tl.cdiv(context_len, num_splits), BLOCK_N) * BLOCK_N"
END = "    end = tl.minimum(start + split_len, context_len)"
NO_TOTAL = "    total = tl.where(total > 0, total, 1.0)\n    num_heads"
OFFS_P = "    offs_p = (seq * num_heads + heads) * num_splits + split\n"
STORE_P = "    tl.store(pieces_ptr + offs_p[:, None] * D + offs_d[None, :], acc / total[:, None], mask=mask)\n"
STORE_W = "    tl.store(weights_ptr + offs_p, highest + tl.log2(total), mask=offs_r < R)"
QUERY = "        query = first_query + offs_r // R\n"
HEAD = "        head = kv_head * R + offs_r % R\n"
IS_QUERY = "        is_query = (offs_r < tile_len * R) & (query < query_len)\n"
VISIBLE = "        visible = tl.where(is_query, num_earlier + query + 1, 1)\n"
PREFILL_END = "        end = tl.minimum(context_len, num_earlier + first_query + tile_len)"
GROUP = "    group = q.view(S, G, R, D).transpose(0, 1).reshape(1, G * S * R, D)\n"
BACK = "    pieces, weights = (x.view(G, S, R, -1).transpose(0, 1).reshape(S, H, 1, -1) for x in shared)\n"
OWN = "block_tables[:, num_shared:], context_lens - num_tokens, scale, 1"
PIECE_VISIBLE = "    visible = tl.zeros([BLOCK_R], tl.int32) + context_len\n    acc, total, highest"
CHALLENGE = "    R, num_tokens = H // G, num_shared * B\n"

answers = Answers("ch12")

# -- task 1 ------------------------------------------------------------------------------------------

answers.wrong("rounded up", task=1, mistake=ROUNDED_UP, edits=[
    (WANTED, "    wanted = -(-PROGRAMS_PER_PROCESSOR * num_processors // max(1, num_programs))\n"),
])
answers.wrong("pieces as short as they come", task=1, mistake=TOO_SHORT, edits=[
    (CHOSEN, "    return max(1, min(wanted, MAX_SPLITS))\n"),
])
answers.wrong("no limit", task=1, mistake=WITHOUT_LIMIT, edits=[
    (CHOSEN, "    return max(1, min(wanted, max_context_len // MIN_SPLIT_LEN))\n"),
])
answers.wrong("0 pieces", task=1, edits=[(CHOSEN, CHOSEN.replace("max(1, min(", "(min("))])
answers.wrong("one program a processor", task=1, edits=[(WANTED, WANTED.replace("PROGRAMS_PER_PROCESSOR * ", ""))])
answers.wrong("fails without programs", task=1, edits=[(WANTED, WANTED.replace("max(1, num_programs)", "num_programs"))])
answers.wrong("short pieces rounded up", task=1, edits=[
    (CHOSEN, CHOSEN.replace("max_context_len // MIN_SPLIT_LEN", "-(-max_context_len // MIN_SPLIT_LEN)")),
])

# -- task 2 ------------------------------------------------------------------------------------------

answers.wrong("V is left out", task=2, mistake=ONLY_K, edits=[(STORE_V, "")])
answers.wrong("PyTorch copies", task=2, mistake=NO_KERNEL, edits=[("    BLOCK_ROWS = min(", """    src, dst = copies.long().T
    k_cache[:, dst], v_cache[:, dst] = k_cache[:, src], v_cache[:, src]
    return
    BLOCK_ROWS = min(""")])
answers.wrong("dst to src", task=2, mistake=BACKWARDS, edits=[
    (LOAD_K, LOAD_K.replace("src", "dst")), (STORE_K, STORE_K.replace("dst", "src")),
    (LOAD_V, LOAD_V.replace("src", "dst")), (STORE_V, STORE_V.replace("dst", "src")),
])
answers.wrong("layer 0 alone", task=2, edits=[
    (OFFS_K, OFFS_K.replace("layer * stride_kl + ", "")), (OFFS_V, OFFS_V.replace("layer * stride_vl + ", "")),
])
answers.wrong("layer 0 by its first program", task=2, mistake=FIRST_LAYER, edits=[
    (COPY_MASK, COPY_MASK.replace("offs_d < D", "offs_d < D * (1 - layer)")),
])
answers.wrong("no mask for the elements", task=2, edits=[(COPY_MASK, "    mask = (offs_row < B * G)[:, None] & (offs_d >= 0)\n")])
answers.wrong("no mask for the rows", task=2, edits=[(COPY_MASK, "    mask = (offs_row >= 0)[:, None] & (offs_d < D)\n")])
answers.wrong("the rows of the first program, in every one", task=2, edits=[(ROWS, "    offs_row = tl.arange(0, BLOCK_ROWS)")])
answers.wrong("slot and head exchanged", task=2, edits=[
    (SLOT, "    slot, head = (offs_row % G).to(tl.int64)[:, None], (offs_row // G).to(tl.int64)[:, None]\n"),
])
answers.wrong("V with K's strides", task=2, edits=[(OFFS_V, "    offs_v = offs_k\n")])
answers.wrong("a head's elements side by side", task=2, edits=[(OFFS_K, OFFS_K.replace("offs_d * stride_kd", "offs_d"))])
answers.wrong("a block is taken for contiguous", task=2, edits=[
    (OFFS_K, "    offs_k = layer * stride_kl + offs_row.to(tl.int64)[:, None] * D + offs_d\n"),
])
answers.wrong("loads every source twice", task=2, edits=[
    (LOAD_K, LOAD_K + LOAD_K),
])

# -- task 3 ------------------------------------------------------------------------------------------

answers.wrong("the plain mean", task=3, mistake=PLAIN_MEAN, edits=[(EXP, "    weights = tl.where(exists, 1.0, 0.0)")])
answers.wrong("PyTorch merges", task=3, mistake=NO_KERNEL, edits=[("    out_dtype, _ = compute_dtypes(dtype)\n    out = torch.empty(S, H, D, dtype=out_dtype, device=pieces.device)\n    _merge", """    shares = torch.exp2(weights - weights.amax(dim=-1, keepdim=True).clamp(min=-1e9))[..., None]
    return ((shares * pieces).sum(dim=2) / shares.sum(dim=2).clamp(min=1e-9)).to(dtype)
    _merge""")])
answers.wrong("e instead of 2", task=3, mistake=BASE_E, edits=[(EXP, EXP.replace("tl.exp2", "tl.exp"))])
answers.wrong("not divided", task=3, mistake=NOT_DIVIDED, edits=[
    (MEAN, "    out = tl.sum(weights[:, None] * pieces, axis=0)\n"),
])
answers.wrong("no piece has weight 0", task=3, mistake=GHOSTS, edits=[(LOAD_W, LOAD_W.replace('float("-inf")', "0.0"))])
answers.wrong("no `other` at all", task=3, edits=[(LOAD_W, LOAD_W.replace(', other=float("-inf")', ""))])
answers.wrong("the highest is not subtracted", task=3, edits=[(EXP, "    weights = tl.exp2(weights)")])
answers.wrong("-inf minus -inf", task=3, edits=[(EXP, "    weights = tl.exp2(weights - highest)")])
answers.wrong("0 / 0", task=3, edits=[(MEAN, MEAN.replace("tl.where(total > 0, total, 1.0)", "total"))])
answers.wrong("pieces without a mask for their width", task=3, edits=[
    (MERGE_MASK, "    mask = exists[:, None] & (offs_d >= 0)[None, :]\n    pieces ="),
])
answers.wrong("weights without a mask", task=3, edits=[
    (LOAD_W, "    weights = tl.load(weights_ptr + offs_p)\n"),
])
answers.wrong("every head to the first one's place", task=3, edits=[(OUT_AT, OUT_AT.replace("head * stride_oh + ", ""))])
answers.wrong("the highest piece wins", task=3, edits=[(EXP, "    weights = tl.where(weights == highest, 1.0, 0.0)")])

# -- task 4 ------------------------------------------------------------------------------------------

answers.wrong("every program reads everything", task=4, edits=[(END, "    start = 0\n    end = context_len")])
answers.wrong("to the end of the context", task=4, edits=[(END, "    end = context_len")])
answers.wrong("past the end of the context", task=4, edits=[(END, "    end = start + split_len")])
answers.wrong("the rest is left over", task=4, edits=[(SPLIT_LEN, "    split_len = context_len // num_splits // BLOCK_N * BLOCK_N")])
answers.wrong("no whole tiles", task=4, edits=[(SPLIT_LEN, "    split_len = tl.cdiv(context_len, num_splits)")])
answers.wrong("a tile more where pieces are whole tiles", task=4, edits=[
    (SPLIT_LEN, "    split_len = tl.cdiv(context_len, num_splits) // BLOCK_N * BLOCK_N + BLOCK_N"),
])
answers.wrong("an empty piece weighs 2^0", task=4, edits=[
    (STORE_W, STORE_W.replace("highest + tl.log2(total)", "tl.where(start < end, highest + tl.log2(total), 0.0)")),
])
answers.wrong("reads to the end, and masks the rest", task=4, mistake=READ_TWICE, edits=[
    (END, "    end = context_len"),
    (PIECE_VISIBLE, "    visible = tl.zeros([BLOCK_R], tl.int32) + tl.minimum(start + split_len, context_len)\n    acc, total, highest"),
])
answers.wrong("a natural logarithm", task=4, mistake=NATURAL_LOG, edits=[
    (STORE_W, STORE_W.replace("highest + tl.log2(total)", "(highest + tl.log2(total)) * 0.6931471805599453")),
])
answers.wrong("highest is forgotten", task=4, mistake=WITHOUT_HIGHEST, edits=[(STORE_W, STORE_W.replace("highest + ", ""))])
answers.wrong("total is forgotten", task=4, edits=[(STORE_W, STORE_W.replace(" + tl.log2(total)", ""))])
answers.wrong("total itself", task=4, edits=[(STORE_W, STORE_W.replace("highest + tl.log2(total)", "total"))])
answers.wrong("not divided by total", task=4, mistake=ACC_STORED, edits=[(STORE_P, STORE_P.replace("acc / total[:, None]", "acc"))])
answers.wrong("0 / 0 in an empty piece", task=4, mistake=NAN_IN_EMPTY, edits=[(NO_TOTAL, "    num_heads")])
answers.wrong("all pieces of a head in one place", task=4, edits=[(OFFS_P, OFFS_P.replace(" + split", ""))])
answers.wrong("pieces side by side, not heads", task=4, edits=[
    (OFFS_P, "    offs_p = (seq * num_splits + split) * num_heads + heads\n"),
])
answers.wrong("rows of no head are stored", task=4, edits=[(STORE_W, STORE_W.replace("mask=offs_r < R", "mask=offs_r >= 0"))])

# -- task 5 ------------------------------------------------------------------------------------------

answers.wrong("counted from position 0", task=5, mistake=UPPER_LEFT, edits=[(VISIBLE, VISIBLE.replace("num_earlier + query", "query"))])
answers.wrong("not itself", task=5, mistake=NOT_ITSELF, edits=[
    (VISIBLE, VISIBLE.replace("num_earlier + query + 1", "tl.maximum(num_earlier + query, 1)")),
])
answers.wrong("no causal mask", task=5, mistake=NO_MASK, edits=[
    (VISIBLE, VISIBLE.replace("num_earlier + query + 1", "context_len")),
    (PREFILL_END, "        end = context_len"),
])
answers.wrong("every tile reads the whole context", task=5, mistake=READS_ALL, edits=[(PREFILL_END, "        end = context_len")])
answers.wrong("one query too few", task=5, edits=[(PREFILL_END, PREFILL_END.replace("tile_len)", "tile_len - 1)"))])
answers.wrong("the context before is forgotten in `end`", task=5, edits=[(PREFILL_END, PREFILL_END.replace("num_earlier + ", ""))])
answers.wrong("reads past the context", task=5, edits=[(PREFILL_END, "        end = num_earlier + first_query + tile_len")])
answers.wrong("the first tile's queries in every one", task=5, edits=[(QUERY, "        query = offs_r // R\n")])
answers.wrong("the heads of group 0", task=5, edits=[(HEAD, "        head = offs_r % R\n")])
answers.wrong("heads dealt out in turn", task=5, edits=[
    (HEAD, "        head = offs_r % R * tl.num_programs(1) + kv_head\n"),
])
answers.wrong("the next sequence's queries too", task=5, edits=[(IS_QUERY, "        is_query = offs_r < tile_len * R\n")])
answers.wrong("rows behind the tile belong to the next one", task=5, edits=[(IS_QUERY, "        is_query = query < query_len\n")])

# -- task 6 ------------------------------------------------------------------------------------------

answers.wrong("an ordinary decode", task=6, mistake=PREFIX_PER_SEQUENCE, edits=[
    (CHALLENGE, "    return paged_decode(q, k_cache, v_cache, block_tables, context_lens, scale)\n" + CHALLENGE),
])
answers.wrong("sequences outermost", task=6, edits=[(GROUP, "    group = q.reshape(1, G * S * R, D)\n")])
answers.wrong("not brought back", task=6, edits=[(BACK, BACK.replace("x.view(G, S, R, -1).transpose(0, 1).reshape", "x.reshape"))])
answers.wrong("the shared part twice", task=6, edits=[(OWN, "block_tables, context_lens, scale, 1")])
answers.wrong("own contexts too long", task=6, edits=[(OWN, "block_tables[:, num_shared:], context_lens, scale, 1")])
answers.wrong("num_shared counted in tokens", task=6, edits=[(CHALLENGE, "    R, num_tokens = H // G, num_shared\n")])
answers.wrong("the tail is forgotten", task=6, edits=[("    pieces = torch.cat([pieces, own_pieces], dim=2)\n", ""), ("torch.cat([weights.squeeze(-1), own_weights], dim=2)", "weights.squeeze(-1)")])

# -- right -------------------------------------------------------------------------------------------

answers.right("the merge one piece after another, as an online softmax", edits=[
    (LOAD_W, ""),
    ("    # subtle: -inf and not 0 where there is no piece: 0 would be a weight like any other.\n" + HIGHEST, ""),
    (EXP, "    first = (seq * tl.num_programs(1) + head) * num_splits\n    highest = tl.load(weights_ptr + first)"),
    ("    mask = exists[:, None] & (offs_d < D)[None, :]\n" + MERGE_LOAD,
     "    total = tl.where(highest > float('-inf'), 1.0, 0.0)\n    acc = tl.load(pieces_ptr + first * D + offs_d, mask=offs_d < D, other=0.0) * total\n"
     "    for i in range(1, num_splits):\n        w = tl.load(weights_ptr + first + i)\n        new = tl.maximum(highest, w)\n        base = tl.where(new > float('-inf'), new, 0.0)\n"
     "        old, factor = tl.exp2(highest - base), tl.exp2(w - base)\n        piece = tl.load(pieces_ptr + (first + i) * D + offs_d, mask=offs_d < D, other=0.0)\n"
     "        acc, total, highest = acc * old + piece * factor, total * old + factor, new\n"),
    ("    total = tl.sum(weights, axis=0)\n" + MEAN, "    out = acc / tl.where(total > 0, total, 1.0)\n"),
])
answers.right("the last query is found first", edits=[
    (PREFILL_END, "        last = tl.minimum(first_query + tile_len, query_len) - 1\n        end = num_earlier + last + 1"),
    (IS_QUERY, "        is_query = (offs_r // R < tile_len) & (query < query_len)\n"),
    (VISIBLE, "        visible = tl.where(is_query, context_len - query_len + query + 1, 1)\n"),
])
answers.right("queries side by side in a tile, not heads", edits=[
    (QUERY, "        query = first_query + offs_r % tile_len\n"),
    (HEAD, "        head = kv_head * R + offs_r // tile_len\n"),
])
answers.right("tiles counted, not tokens", edits=[
    (SPLIT_LEN, "    num_tiles = tl.cdiv(context_len, BLOCK_N)\n    split_len = tl.cdiv(num_tiles, num_splits) * BLOCK_N"),
    (NO_TOTAL, "    highest = tl.where(total > 0, highest + tl.log2(tl.where(total > 0, total, 1.0)), float('-inf'))\n" + NO_TOTAL),
    (STORE_W, "    tl.store(weights_ptr + offs_p, highest, mask=offs_r < R)"),
])
answers.right("a chain of conditions instead of min and max", edits=[
    (WANTED + CHOSEN, '''    pieces = MAX_SPLITS
    if num_programs > 0:
        pieces = min(pieces, num_processors * PROGRAMS_PER_PROCESSOR // num_programs)
    while pieces > 1 and pieces * MIN_SPLIT_LEN > max_context_len:
        pieces -= 1
    return pieces or 1
'''),
])
answers.right("the shared part in two pieces, merged once with the rest", edits=[
    ("torch.full_like(context_lens[:1], num_tokens), scale, 1\n", "torch.full_like(context_lens[:1], num_tokens), scale, 2\n"),
    (BACK, "    pieces = shared[0].view(G, S, R, 2, D).transpose(0, 1).reshape(S, H, 2, D)\n    weights = shared[1].view(G, S, R, 2, 1).transpose(0, 1).reshape(S, H, 2, 1)\n"),
])
answers.right("heads outermost in a block, rows that are no query see nothing, powers of e in the merge", edits=[
    (SLOT, "    slot, head = (offs_row % B).to(tl.int64)[:, None], (offs_row // B).to(tl.int64)[:, None]\n"),
    (EXP, "    weights = tl.exp((weights - tl.where(highest > float('-inf'), highest, 0.0)) * 0.6931471805599453)"),
    (SPLIT_LEN, "    split_len = tl.cdiv(context_len, num_splits * BLOCK_N) * BLOCK_N"),
    (VISIBLE, "        visible = tl.where(is_query, num_earlier + query + 1, 0)\n"),
])

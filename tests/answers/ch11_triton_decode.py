"""Wrong answers that chapter 11's grader must reject, and right ones that it must accept."""

from minipaged.course.answers import Answers

NO_KERNEL = "it was computed without a kernel"
NO_MASK = "lanes that have no element load or store: a mask is missing or too wide"
OUTSIDE = "none of the lanes has an element: the address is wrong, or nothing is masked"
MEET = "two programs write the same elements: the program's number is missing in an address"
GARBAGE = "slots that hold no token were read"
ROW_0 = "every row was multiplied by factors[0]"
CONTIGUOUS = "x was read as if it were contiguous: its strides were not used"
NO_OTHER = "lanes that were not loaded were used: what they hold is anything at all, without `other`"
PADDING_LOADED = "something was loaded where the index is -1"
GHOSTS = "lanes without an element counted as elements of 0"
NOT_RESCALED = "what was summed before a higher element came was not made smaller"
NO_HIGHEST = "the highest element was not taken off before the exponential, which overflowed"
READ_TWICE = "elements were loaded twice"
ONLY_K = "one of the two caches was not written"
EXCHANGED = "K went to V's cache, or V to K's"
NO_SCALE = "the scores were not multiplied by `scale`"
NATURAL = "weights are powers of e, or scores not in units of ln 2: they are powers of 2 here"
ALL_VISIBLE = "rows see positions that are not visible to them"
NOT_DIVIDED = "the sum of weights times V was not divided by the sum of weights"
NAN_WITHOUT_CONTEXT = "without context it is 0 / 0"
DEALT_OUT = "query head h read KV head h % G: neighbours share one, h // (H / G)"
FIRST_GROUP = "every program served the query heads of the first group"
PER_HEAD = "K was loaded once for each query head, not once for the group"
NARROW = "an offset was computed in 32 bits: in a tensor of 2^31 elements and more it gets negative"
NEW_LOADED = "the new token's row was loaded back from the cache that it was just stored to"

answers = Answers("ch11")

# -- task 1 ------------------------------------------------------------------------------------------

ADD_OFFS = "    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
ADD_MASK = "    mask = offs < n  # n is seldom a multiple of BLOCK\n"
ADD_STORE = "    tl.store(out_ptr + offs, x + y, mask=mask)\n"

answers.wrong("no mask", task=1, mistake=NO_MASK, edits=[(ADD_MASK, "    mask = offs >= 0\n")])
answers.wrong("PyTorch adds", task=1, mistake=NO_KERNEL, edits=[("    _add_kernel[(triton.cdiv(len(x), ADD_BLOCK),)](x, y, out, len(x), BLOCK=ADD_BLOCK)\n    return out", "    return x + y")])
answers.wrong("one lane too few", task=1, edits=[(ADD_MASK, "    mask = offs < n - 1\n")])
answers.wrong("every program takes the first elements", task=1, mistake=MEET, edits=[(ADD_OFFS, "    offs = tl.arange(0, BLOCK)\n")])
answers.wrong("x twice", task=1, mistake=READ_TWICE, edits=[
    ("    y = tl.load(y_ptr + offs, mask=mask)\n", "    y = tl.load(y_ptr + offs, mask=mask) + tl.load(x_ptr + offs, mask=mask) - x\n"),
])

# -- task 2 ------------------------------------------------------------------------------------------

FACTOR = "    factor = tl.load(factors_ptr + row * stride_fm)\n"
SCALE_MASK = "    mask = columns < N\n"
SCALE_LOAD = "    x = tl.load(x_ptr + row * stride_xm + columns * stride_xn, mask=mask)\n"
SCALE_STORE = "    tl.store(out_ptr + row * stride_om + columns * stride_on, x * factor, mask=mask)\n"

answers.wrong("factor 0 for all", task=2, mistake=ROW_0, edits=[(FACTOR, "    factor = tl.load(factors_ptr)\n")])
answers.wrong("x taken for contiguous", task=2, mistake=CONTIGUOUS, edits=[(SCALE_LOAD, "    x = tl.load(x_ptr + row * N + columns, mask=mask)\n")])
answers.wrong("factors side by side", task=2, edits=[(FACTOR, FACTOR.replace("row * stride_fm", "row"))])
answers.wrong("no mask for the columns", task=2, mistake=NO_MASK, edits=[(SCALE_MASK, "    mask = columns >= 0\n")])
answers.wrong("row 0 is stored by all", task=2, mistake=MEET, edits=[(SCALE_STORE, SCALE_STORE.replace("row * stride_om + ", ""))])

# -- task 3 ------------------------------------------------------------------------------------------

GATHER_ROW = "    row = tl.load(index_ptr + i * stride_it).to(tl.int64)\n"
GATHER_LOAD = "    values = tl.load(table_ptr + row * stride_tn + columns * stride_td, mask=exists & (row >= 0), other=0.0)\n"
GATHER_STORE = "    tl.store(out_ptr + i * stride_om + columns * stride_od, values, mask=exists)\n"

answers.wrong("no `other`", task=3, mistake=NO_OTHER, edits=[(GATHER_LOAD, GATHER_LOAD.replace(", other=0.0", ""))])
answers.wrong("-1 is a row like any other", task=3, mistake=OUTSIDE, edits=[(GATHER_LOAD, GATHER_LOAD.replace("exists & (row >= 0)", "exists"))])
answers.wrong("loads row 0 for -1, and forgets it", task=3, edits=[
    (GATHER_LOAD, "    values = tl.load(table_ptr + tl.maximum(row, 0) * stride_tn + columns * stride_td, mask=exists, other=0.0)\n    values = tl.where(row >= 0, values, 0.0)\n"),
])
answers.wrong("nothing is stored for -1", task=3, edits=[(GATHER_STORE, GATHER_STORE.replace("mask=exists", "mask=exists & (row >= 0)"))])
answers.wrong("columns without a mask", task=3, mistake=NO_MASK, edits=[("    exists = columns < D\n", "    exists = columns >= 0\n")])
answers.wrong("the number of the row in 32 bits", task=3, mistake=NARROW, edits=[(GATHER_ROW, GATHER_ROW.replace(".to(tl.int64)", ""))])
answers.wrong("an index without a stride", task=3, edits=[(GATHER_ROW, GATHER_ROW.replace("i * stride_it", "i"))])

# -- task 4 ------------------------------------------------------------------------------------------

SUM_LOAD = '        x = tl.load(x_ptr + row * stride_xm + columns * stride_xn, mask=columns < N, other=float("-inf"))\n'
SUM_HIGHEST = "        new_highest = tl.maximum(highest, tl.max(x, axis=0))\n"
SUM_TOTAL = "        total = total * tl.exp(highest - new_highest) + tl.sum(tl.exp(x - new_highest), axis=0)\n"
SUM_STORE = "    tl.store(out_ptr + row, highest + tl.log(total))\n"

answers.wrong("the old sum does not shrink", task=4, mistake=NOT_RESCALED, edits=[(SUM_TOTAL, SUM_TOTAL.replace("total * tl.exp(highest - new_highest)", "total"))])
answers.wrong("lanes behind the end are 0", task=4, mistake=GHOSTS, edits=[(SUM_LOAD, SUM_LOAD.replace('float("-inf")', "0.0"))])
answers.wrong("plain exponentials", task=4, mistake=NO_HIGHEST, edits=[(SUM_HIGHEST, "        new_highest = tl.full([], 0.0, tl.float32)\n")])
answers.wrong("the highest of this tile only", task=4, edits=[(SUM_HIGHEST, "        new_highest = tl.max(x, axis=0)\n"), (SUM_TOTAL, SUM_TOTAL.replace("highest - new_highest", "tl.minimum(highest - new_highest, 0.0)"))])
answers.wrong("one tile only", task=4, edits=[("    for first in range(0, N, BLOCK):\n        columns = first", "    for first in range(0, 1):\n        columns = first")])
answers.wrong("lanes behind the end are -10,000", task=4, edits=[(SUM_LOAD, SUM_LOAD.replace('float("-inf")', "-1e4"))])
answers.wrong("two passes", task=4, mistake=READ_TWICE, edits=[
    ("    for first in range(0, N, BLOCK):\n        columns = first",
     "    for first in range(0, N, BLOCK):\n        offs = first + tl.arange(0, BLOCK)\n"
     "        tile = tl.load(x_ptr + row * stride_xm + offs * stride_xn, mask=offs < N, other=float('-inf'))\n"
     "        highest = tl.maximum(highest, tl.max(tile, axis=0))\n    for first in range(0, N, BLOCK):\n        columns = first"),
])

# -- task 5 ------------------------------------------------------------------------------------------

STORE_IF = "    if slot >= 0:  # -1 is padding\n"
STORE_PLACE = "        block, row = slot // B, slot % B\n"
STORE_MASK = "        mask = (offs_g < G) & (offs_d < D)  # arange"
STORE_LOAD_K = "        k = tl.load(k_ptr + token * stride_kt + offs_g * stride_kg + offs_d * stride_kd, mask=mask)\n"
STORE_LOAD_V = "        v = tl.load(v_ptr + token * stride_vt + offs_g * stride_vg + offs_d * stride_vd, mask=mask)\n"
STORE_K_AT = "        k_slot_ptr = k_cache_ptr + block * stride_kcn + row * stride_kcb\n"
STORE_V_AT = "        v_slot_ptr = v_cache_ptr + block * stride_vcn + row * stride_vcb\n"
STORE_K = "        tl.store(k_slot_ptr + offs_g * stride_kcg + offs_d * stride_kcd, k, mask=mask)\n"
STORE_V = "        tl.store(v_slot_ptr + offs_g * stride_vcg + offs_d * stride_vcd, v, mask=mask)\n"

answers.wrong("padding is stored before the first slot", task=5, mistake=OUTSIDE, edits=[(STORE_IF, "    if slot >= -1:\n")])
answers.wrong("padding is loaded, and not stored", task=5, mistake=PADDING_LOADED, edits=[
    (STORE_IF, "    written = slot >= 0\n    if token >= 0:\n"),
    (STORE_K, STORE_K.replace("mask=mask", "mask=mask & written")), (STORE_V, STORE_V.replace("mask=mask", "mask=mask & written")),
])
answers.wrong("PyTorch stores", task=5, mistake=NO_KERNEL, edits=[("    T, G, D = k.shape\n    if T == 0:\n        return\n", """    stored, B = slot_mapping >= 0, k_cache.shape[1]
    slots = slot_mapping[stored].long()
    k_cache[slots // B, slots % B], v_cache[slots // B, slots % B] = k[stored], v[stored]
    return
    T, G, D = k.shape
""")])
answers.wrong("slot 0 is padding", task=5, edits=[(STORE_IF, "    if slot > 0:\n")])
answers.wrong("V is forgotten", task=5, mistake=ONLY_K, edits=[(STORE_V, "")])
answers.wrong("K and V exchanged", task=5, mistake=EXCHANGED, edits=[
    (STORE_K, STORE_K.replace("kcd, k,", "kcd, v,")), (STORE_V, STORE_V.replace("vcd, v,", "vcd, k,")),
])
answers.wrong("no mask for the heads", task=5, mistake=NO_MASK, edits=[(STORE_MASK, "        mask = (offs_g >= 0) & (offs_d < D)  # arange")])
answers.wrong("no mask for the elements", task=5, mistake=NO_MASK, edits=[(STORE_MASK, "        mask = (offs_g < G) & (offs_d >= 0)  # arange")])
answers.wrong("V's cache by K's strides", task=5, edits=[
    (STORE_V_AT, STORE_V_AT.replace("stride_v", "stride_k")), (STORE_V, STORE_V.replace("stride_v", "stride_k")),
])
answers.wrong("k taken for contiguous", task=5, edits=[(STORE_LOAD_K, "        k = tl.load(k_ptr + (token * G + offs_g) * D + offs_d, mask=mask)\n")])
answers.wrong("v by k's strides", task=5, edits=[(STORE_LOAD_V, STORE_LOAD_V.replace("stride_v", "stride_k"))])
answers.wrong("slots without a stride", task=5, edits=[("slot_mapping_ptr + token * stride_st", "slot_mapping_ptr + token")])
answers.wrong("block and row exchanged", task=5, mistake=OUTSIDE, edits=[(STORE_PLACE, "        block, row = slot % B, slot // B\n")])
answers.wrong("the slot in 32 bits", task=5, mistake=NARROW, edits=[("    slot = tl.load(slot_mapping_ptr + token * stride_st).to(tl.int64)\n", "    slot = tl.load(slot_mapping_ptr + token * stride_st)\n")])

# -- task 6 ------------------------------------------------------------------------------------------

EXISTS = "        exists = position < end\n"
TABLE = "        block = tl.load(table_ptr + (position // B).to(tl.int64) * stride_tm, mask=exists, other=0)\n"
PLACE = "        block, row = block.to(tl.int64)[:, None], (position % B).to(tl.int64)[:, None]\n"
KV_MASK = "        mask = exists[:, None] & (offs_d < D)[None, :]\n"
LOAD_K = "        k = tl.load(k_ptr + offs_k, mask=mask, other=0.0).to(q.dtype)\n"
SCORES = '        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)  # 1 / ln 2\n'
HIDE = '        scores = tl.where(position[None, :] < visible[:, None], scores, float("-inf"))\n'
HIGHEST = "        new_highest = tl.maximum(highest, tl.max(scores, axis=1))\n"
WEIGHTS = "        weights = tl.exp2(scores - new_highest[:, None])\n"
SHRINK = "        shrink = tl.exp2(highest - new_highest)  # what"
TOTAL = "        total = total * shrink + tl.sum(weights, axis=1)\n"
OFFS_V = "        offs_v = block * stride_vn + row * stride_vb + offs_d[None, :] * stride_vd\n"
LOAD_V = "        v = tl.load(v_ptr + offs_v, mask=mask, other=0.0).to(q.dtype)\n"
ACC = '        acc = acc * shrink[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="ieee")\n'
KEPT = "        highest = new_highest\n    ### END SOLUTION\n    return acc"

answers.wrong("the table is read past its end", task=6, mistake=NO_MASK, edits=[(TABLE, TABLE.replace(", mask=exists, other=0", ""))])
answers.wrong("whole blocks are read", task=6, mistake=GARBAGE, edits=[
    (KV_MASK, "        mask = (position < (end + B - 1) // B * B)[:, None] & (offs_d < D)[None, :]\n"),
])
answers.wrong("whole tiles are read", task=6, edits=[(KV_MASK, "        mask = (position >= 0)[:, None] & (offs_d < D)[None, :]\n")])
answers.wrong("elements behind the head's end", task=6, mistake=NO_MASK, edits=[(KV_MASK, "        mask = exists[:, None] & (offs_d >= 0)[None, :]\n")])
answers.wrong("no `other` for V", task=6, edits=[(LOAD_V, LOAD_V.replace(", other=0.0", ""))])
answers.wrong("the scale is forgotten", task=6, mistake=NO_SCALE, edits=[(SCORES, SCORES.replace("scale * 1.44", "1.44"))])
answers.wrong("powers of 2 of scores", task=6, mistake=NATURAL, edits=[(SCORES, SCORES.replace(" * (scale * 1.4426950408889634)", " * scale"))])
answers.wrong("all is visible", task=6, mistake=ALL_VISIBLE, edits=[(HIDE, '        scores = tl.where(position[None, :] < end, scores, float("-inf"))\n')])
answers.wrong("hidden scores are 0", task=6, edits=[(HIDE, HIDE.replace('float("-inf")', "0.0"))])
answers.wrong("total does not shrink", task=6, mistake=NOT_RESCALED, edits=[(TOTAL, TOTAL.replace("total * shrink", "total"))])
answers.wrong("acc does not shrink", task=6, mistake=NOT_RESCALED, edits=[(ACC, ACC.replace("acc * shrink[:, None]", "acc"))])
answers.wrong("the highest is not kept", task=6, edits=[(KEPT, "    ### END SOLUTION\n    return acc")])
answers.wrong("one highest for all rows", task=6, edits=[(HIGHEST, "        new_highest = tl.maximum(highest, tl.max(tl.max(scores, axis=1), axis=0))\n")])
answers.wrong("blocks of V taken for contiguous", task=6, edits=[(OFFS_V, "        offs_v = (block * B + row) * D + offs_d[None, :]\n")])
answers.wrong("K is loaded twice", task=6, mistake=READ_TWICE, edits=[(LOAD_K, LOAD_K + LOAD_K)])
answers.wrong("K by V's strides", task=6, edits=[
    ("        offs_k = block * stride_kn + row * stride_kb + offs_d[None, :] * stride_kd\n", "        offs_k = block * stride_vn + row * stride_vb + offs_d[None, :] * stride_vd\n"),
])
answers.wrong("a table without a stride", task=6, edits=[(TABLE, TABLE.replace(" * stride_tm", ""))])
answers.wrong("the block's number in 32 bits", task=6, mistake=NARROW, edits=[(PLACE, "        block, row = block[:, None], (position % B)[:, None]\n")])
answers.wrong("hidden scores are -10,000", task=6, edits=[(HIDE, HIDE.replace('float("-inf")', "-1e4"))])
answers.wrong("one block a tile", task=6, edits=[
    (TABLE, "        block = tl.load(table_ptr + (first // B) * stride_tm + tl.zeros([BLOCK_N], tl.int64), mask=exists, other=0)\n"),
])
answers.wrong("starts with the first tile, whatever the start", task=6, edits=[("    for first in range(start, end, BLOCK_N):\n", "    for first in range(0, end, BLOCK_N):\n")])

# -- task 7 ------------------------------------------------------------------------------------------

DECODE_HEAD = """### BEGIN SOLUTION
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    offs_r = tl.arange(0, BLOCK_R).to(tl.int64)  # the R query heads that share this KV head
"""
DECODE_MASK = "    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)\n    mask = (offs_r < R)[:, None] & (offs_d < D)[None, :]\n    heads = kv_head * R + offs_r\n"
DECODE_Q = """    q = tl.load(q_ptr + seq * stride_qs + offs_q, mask=mask, other=0.0).to(DOT_DTYPE)
    ### END SOLUTION
"""
DECODE_OUT = "    out = acc / tl.where(total > 0, total, 1.0)[:, None]  # no context: 0 / 1\n"
DECODE_STORE = "    tl.store(out_ptr + seq * stride_os + offs_o, out.to(out_ptr.dtype.element_ty), mask=mask)\n"

answers.wrong("heads dealt out in turn", task=7, mistake=DEALT_OUT, edits=[
    (DECODE_MASK, DECODE_MASK.replace("kv_head * R + offs_r", "offs_r * tl.num_programs(1) + kv_head")),
])
answers.wrong("the first group's heads, stored in their own places", task=7, mistake=FIRST_GROUP, edits=[
    (DECODE_MASK, DECODE_MASK.replace("kv_head * R + offs_r", "offs_r")),
    (DECODE_STORE, DECODE_STORE.replace("+ offs_o", "+ offs_o + kv_head * R * stride_oh")),
])
answers.wrong("all groups to the first group's place", task=7, mistake=MEET, edits=[
    (DECODE_MASK, DECODE_MASK.replace("kv_head * R + offs_r", "offs_r")),
])
answers.wrong("not divided", task=7, mistake=NOT_DIVIDED, edits=[(DECODE_OUT, "    out = acc\n")])
answers.wrong("0 / 0", task=7, mistake=NAN_WITHOUT_CONTEXT, edits=[(DECODE_OUT, "    out = acc / total[:, None]\n")])
answers.wrong("heads of the next group too", task=7, edits=[(DECODE_MASK, DECODE_MASK.replace("(offs_r < R)", "(offs_r >= 0)"))])
answers.wrong("q taken for contiguous", task=7, edits=[
    (DECODE_Q, DECODE_Q.replace("seq * stride_qs + offs_q", "(seq * tl.num_programs(1) * R + heads[:, None]) * D + offs_d[None, :]")),
])
answers.wrong("stored by q's strides", task=7, edits=[(DECODE_STORE, DECODE_STORE.replace("seq * stride_os", "seq * stride_qs"))])
answers.wrong("sums in the dtype of q", task=7, edits=[
    (ACC, '        acc = (acc * shrink[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="ieee")).to(q.dtype).to(tl.float32)\n'),
])
answers.wrong("one head after another", task=7, mistake=PER_HEAD, edits=[
    ("    visible = tl.zeros([BLOCK_R], tl.int32) + context_len  # the newest token sees all of its context\n",
     "    visible = tl.zeros([BLOCK_R], tl.int32) + context_len\n    for r in range(R - 1):\n"
     "        ignored, _, _ = attend(\n            q, visible, 0, context_len, scale, block_tables_ptr + seq * stride_ts, stride_tm,\n"
     "            k_cache_ptr + kv_head * stride_kg, stride_kn, stride_kb, stride_kd,\n"
     "            v_cache_ptr + kv_head * stride_vg, stride_vn, stride_vb, stride_vd,\n"
     "            B, D, BLOCK_R, BLOCK_D, BLOCK_N,\n        )\n"),
])

# -- task 8 ------------------------------------------------------------------------------------------

NUM_EARLIER = "    num_earlier = tl.load(context_lens_ptr + seq * stride_cs).to(tl.int32) - 1\n"
BOTH_K = "    tl.store(k_head_ptr + block * stride_kcn + row * stride_kcb + offs_d * stride_kcd, k, mask=is_element)\n"
BOTH_V = "    tl.store(v_head_ptr + block * stride_vcn + row * stride_vcb + offs_d * stride_vcd, v, mask=is_element)\n"
BOTH_ATTEND = "        q, visible, 0, num_earlier, scale, table_ptr, stride_tm,\n"
BOTH_VISIBLE = "    visible = tl.zeros([BLOCK_R], tl.int32) + num_earlier\n"
BOTH_SCORE = "    score = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], axis=1) * (scale * 1.4426950408889634)\n"
BOTH_MERGE = """    total = total * shrink + weight
    acc = acc * shrink[:, None] + weight[:, None] * v.to(tl.float32)[None, :]
"""

answers.wrong("stored, and loaded back", task=8, mistake=NEW_LOADED, edits=[
    (BOTH_ATTEND, BOTH_ATTEND.replace("num_earlier", "num_earlier + 1")), (BOTH_VISIBLE, BOTH_VISIBLE.replace("num_earlier", "num_earlier + 1")),
    (BOTH_MERGE, ""),
])
answers.wrong("the new token counts twice", task=8, edits=[
    (BOTH_ATTEND, BOTH_ATTEND.replace("num_earlier", "num_earlier + 1")), (BOTH_VISIBLE, BOTH_VISIBLE.replace("num_earlier", "num_earlier + 1")),
])
answers.wrong("only K is stored", task=8, mistake=ONLY_K, edits=[(BOTH_V, "")])
answers.wrong("K stored by V's strides", task=8, edits=[(BOTH_K, BOTH_K.replace("stride_kcn", "stride_vcn").replace("stride_kcb", "stride_vcb"))])
answers.wrong("without the new token", task=8, edits=[(BOTH_MERGE, "    total = tl.where(total > 0, total, 1.0)\n")])
answers.wrong("nothing shrinks", task=8, mistake=NOT_RESCALED, edits=[(BOTH_MERGE, BOTH_MERGE.replace("total * shrink", "total").replace("acc * shrink[:, None]", "acc"))])

# -- right -------------------------------------------------------------------------------------------

answers.right("products and sums instead of tl.dot, one head stored after another", edits=[
    (SCORES, "        scores = tl.sum(q[:, None, :].to(tl.float32) * k[None, :, :].to(tl.float32), axis=2) * (scale * 1.4426950408889634)\n"),
    (ACC, "        acc = acc * shrink[:, None] + tl.sum(weights[:, :, None] * v[None, :, :].to(tl.float32), axis=1)\n"),
    (STORE_IF, "    for g in range(G):\n        written = (slot >= 0) & (tl.arange(0, BLOCK_D) < D)\n"),
    (STORE_PLACE, "        block = tl.maximum(slot, 0) // B\n        row = slot - block * B\n"),
    ("        offs_g = tl.arange(0, BLOCK_G)[:, None].to(tl.int64)\n        offs_d = tl.arange(0, BLOCK_D)[None, :].to(tl.int64)\n", "        offs_g, offs_d = g, tl.arange(0, BLOCK_D).to(tl.int64)\n"),
    (STORE_MASK, "        mask = written  # arange"),
])
answers.right("a total for every lane; exp and not exp2; pointers moved step by step", edits=[
    ("    for first in range(0, N, BLOCK):\n        columns = first", "    highest = tl.full([BLOCK], -1e30, tl.float32)\n    total = tl.zeros([BLOCK], tl.float32)\n    for first in range(0, N, BLOCK):\n        columns = first"),
    (SUM_HIGHEST, "        new_highest = tl.maximum(highest, x)\n"),
    (SUM_TOTAL, "        total = total * tl.exp(highest - new_highest) + tl.exp(x - new_highest)\n"),
    (SUM_STORE, "    top = tl.max(highest, axis=0)\n    tl.store(out_ptr + row, top + tl.log(tl.sum(total * tl.exp(highest - top), axis=0)))\n"),
    (GATHER_LOAD, "    table_ptr += tl.where(row >= 0, row, 0) * stride_tn\n    values = tl.load(table_ptr + columns * stride_td, mask=exists & (row >= 0))\n    values = tl.where(row >= 0, values, 0.0)\n"),
    (SCALE_LOAD, "    x_ptr += row * stride_xm\n    x = tl.load(x_ptr + columns * stride_xn, mask=mask)\n"),
    (ADD_OFFS, "    first = tl.program_id(0) * BLOCK\n    offs = first + tl.arange(0, BLOCK)\n"),
    (SCORES, '        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale\n'),
    (WEIGHTS, "        weights = tl.exp(scores - new_highest[:, None])\n"),
    (SHRINK, "        shrink = tl.exp(highest - new_highest)  # what"),
    (KEPT, "        highest = new_highest\n    highest = highest * 1.4426950408889634\n    ### END SOLUTION\n    return acc"),
])
answers.right("a while loop, a reciprocal, the merge written otherwise", edits=[
    ("    for first in range(0, N, BLOCK):\n        columns = first", "    first = 0\n    while first < N:\n        columns = first"),
    ("        highest = new_highest\n    tl.store(out_ptr + row", "        highest = new_highest\n        first += BLOCK\n    tl.store(out_ptr + row"),
    (DECODE_OUT, "    out = tl.where(context_len > 0, acc * (1.0 / tl.maximum(total, 1e-30))[:, None], 0.0)\n"),
    (BOTH_MERGE, """    total, acc = weight + shrink * total, weight[:, None] * v[None, :].to(tl.float32) + shrink[:, None] * acc
"""),
    (BOTH_SCORE, "    score = tl.sum(q.to(tl.float32) * (k.to(tl.float32) * scale)[None, :], axis=1) / 0.6931471805599453\n"),
])
answers.right("programs interleaved, a plain `if` for padding, K loaded transposed, rows clamped to the table", edits=[
    (ADD_OFFS, "    offs = tl.program_id(0) + tl.arange(0, BLOCK) * tl.num_programs(0)\n"),
    (GATHER_LOAD, "    values = tl.zeros([BLOCK], table_ptr.dtype.element_ty)\n    if row >= 0:\n        values = tl.load(table_ptr + row * stride_tn + columns * stride_td, mask=exists, other=0.0)\n"),
    (SUM_LOAD, "        x = tl.load(x_ptr + row * stride_xm + columns * stride_xn, mask=columns < N, other=0.0)\n        x = tl.where(columns < N, x, -1e38)\n"),
    ("        offs_g = tl.arange(0, BLOCK_G)[:, None].to(tl.int64)\n        offs_d = tl.arange(0, BLOCK_D)[None, :].to(tl.int64)\n",
     "        flat = tl.arange(0, BLOCK_G * BLOCK_D)\n        offs_g, offs_d = (flat // D).to(tl.int64), (flat % D).to(tl.int64)\n"),
    (STORE_MASK, "        mask = flat < G * D  # arange"),
    (TABLE, "        block = tl.load(table_ptr + (tl.minimum(position, end - 1) // B).to(tl.int64) * stride_tm)\n"),
    (LOAD_K, "        k = tl.load(k_ptr + tl.trans(offs_k), mask=tl.trans(mask), other=0.0).to(q.dtype)\n"),
    (SCORES, '        scores = tl.dot(q, k, input_precision="ieee") * scale / 0.6931471805599453\n'),
])

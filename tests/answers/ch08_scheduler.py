"""Wrong answers that chapter 8's grader must reject, and right ones that it must accept."""

from __future__ import annotations

from minipaged.course.answers import Answers

answers = Answers("ch08")

NOT_STATIC = "a seat was taken before the whole batch had ended"
NOT_CONTINUOUS = "a free seat stayed empty until the whole batch had ended: that is static batching"
ROUND_ROBIN = "the seats were taken in turn: a request takes the one that is free first"
DECODES_FORGOTTEN = "the tokens of those who decode were forgotten: they come out of the same budget"
EVEN = "the prompt was cut into equal parts: every chunk but the last fills what is left of the budget"
PRIORITY_IGNORED = "the priority was ignored: only the order of arrival counted"
HIGH_FIRST = "a higher number was put first: the lower the number, the earlier"
AT_THE_END = "the request was put at the end of the queue, although it is older than others there"
STILL_RUNNING = "requests are still running after a restart"
OVER_BUDGET = "more tokens were computed than max_num_batched_tokens allows"
NO_CHUNK = "a prompt waited until it fits into one step: it is computed in chunks"
COPIES_LOST = "the copies that the memory asked for were lost: somebody will read a block that nobody filled"
NO_FORK = "fork_ready was not called, and a branch waits for ever for its beginning"
EMPTY_WORK = "a request that computes nothing got an entry in the step's work"
TOO_MANY_SEQS = "more sequences run than max_num_seqs allows"
BRANCHES = "a request with several branches was counted as one sequence"
OVERTAKEN = "a request overtook the head of the queue"
ONLY_A_CHUNK = "a request was admitted when its first chunk fitted: all of its tokens must"
PROMISES = "blocks were given away that are promised to a running request's prompt"
NOT_LEFT = "the last block or seat was not given, although it was free"
GIVEN_UP_EARLY = "a request was given up while others run, whose blocks will become free"
NEVER_GIVEN_UP = "a request that the empty pool can't hold blocks the queue"
SWAP_IN_LOST = "the copies that swap a request in were lost"
NOT_IN_ORDER = "running is not in the order of (priority, arrival)"
WRONG_VICTIM = "the wrong request gave way: it is the last in the order of (priority, arrival)"
EARLIER_VICTIM = "a request gave way that has its slots of this step already"
ADMITTED_TOO = "somebody was admitted in a step in which another was preempted"
NOT_NOTED = "the preempted request is missing in step.preempted"
LOST_REQUEST = "a preempted request was lost: it must wait again"
PREEMPTED_ALONE = "a request that runs alone was preempted: nobody else has blocks, and it is given up"
NEVER_AGES = "a request that waits does not gain: as long as others keep coming, it starves"
SET_BACK = "running, or being preempted, set the count of waited steps back"
COUNTS_RUNNING = "a step in which the request ran was counted as one that it waited"
NOT_SORTED = "the priorities changed, and the queue is still in the old order"
BEFORE_STEP = "who is admitted in this very step was counted as waiting"

ADD = "        insort(self.waiting, request, key=lambda waiting: waiting.order)\n"
RESTART = "        self.waiting = sorted(requests, key=lambda request: request.order)\n"
RUN = """            work = request.next_tokens(budget)
            if work and self._make_room(request, work, step):
                budget -= self._take(request, work, step)
        return budget
"""
NO_SEAT = """            if num_seqs + request.num_seqs > self.max_num_seqs:
                break
"""
NO_BLOCKS = "            if self.memory.blocks_to_admit(request) > self.memory.allocator.num_free - promised:\n"
NOT_RUNNING = """                if self.running:
                    break  # blocks will become free; and a smaller one from behind would only delay that
"""
GIVE_UP = "                self._give_up(request, step)  # the pool is empty and still too small\n"
ENTER = "            self.waiting.remove(request)\n            insort(self.running, request, key=lambda running: running.order)\n"
FIRST = "            budget -= self._take(request, request.next_tokens(budget), step)\n"
PREEMPT = "        self.running.remove(request)\n        self.add(request)\n        return copies\n"
ALONE = """            if len(self.running) == 1:
                self._give_up(request, step)
                return False
            candidates"""
AGE = """        for request in self.waiting:
            self._num_waited[request] += 1
"""
SORT = "        self.waiting.sort(key=lambda request: request.order)\n"

# -- task 1
answers.wrong(
    "the next batch starts when the shortest has ended", task=1, edits=[("start += max(batch)", "start += min(batch)")],
)
answers.wrong(
    "both timetables are continuous", task=1, mistake=NOT_STATIC,
    edits=[("        timeline += [(start, start + output_len) for output_len in batch]\n", ""),
           ("        start += max(batch)\n    return timeline\n", "        del batch\n    return continuous_timeline(output_lens, max_num_seqs)\n")],
)
answers.wrong(
    "both timetables are static", task=1, mistake=NOT_CONTINUOUS,
    edits=[("    free_from = [0] * max_num_seqs\n", "    return static_timeline(output_lens, max_num_seqs)\n    free_from = [0] * max_num_seqs\n")],
)
answers.wrong(
    "seats are taken in turn", task=1, mistake=ROUND_ROBIN,
    edits=[
        ("    for output_len in output_lens:\n        start = free_from[0]\n        heapreplace(free_from, start + output_len)\n",
         "    for index, output_len in enumerate(output_lens):\n        start = free_from[index % max_num_seqs]\n        free_from[index % max_num_seqs] = start + output_len\n"),
    ],
)
answers.wrong(
    "a seat is free one step later", task=1,
    edits=[("        heapreplace(free_from, start + output_len)\n", "        heapreplace(free_from, start + output_len + 1)\n")],
)
answers.wrong(
    "no seats at all are an empty timetable", task=1,
    edits=[("    timeline: list[tuple[int, int]] = []\n    start = 0\n", "    timeline: list[tuple[int, int]] = []\n    start = 0\n"),
           ('    check_int("max_num_seqs", max_num_seqs, minimum=1)\n    timeline: list[tuple[int, int]] = []\n    # A heap', "    if max_num_seqs < 1:\n        return []\n    timeline: list[tuple[int, int]] = []\n    # A heap")],
)
# -- task 2
answers.wrong(
    "the prompt has the whole budget", task=2, mistake=DECODES_FORGOTTEN,
    edits=[("    return [min(room, prompt_len - done) for done in range(0, prompt_len, room)]",
            "    room = max_num_batched_tokens\n    return [min(room, prompt_len - done) for done in range(0, prompt_len, room)]")],
)
answers.wrong(
    "equal chunks", task=2, mistake=EVEN,
    edits=[("    return [min(room, prompt_len - done) for done in range(0, prompt_len, room)]",
            "    num = -(-prompt_len // room)\n    return [prompt_len // num + (index < prompt_len % num) for index in range(num)]")],
)
answers.wrong(
    "an empty last chunk", task=2, mistake="an empty last chunk",
    edits=[("    return [min(room, prompt_len - done) for done in range(0, prompt_len, room)]",
            "    return [room] * (prompt_len // room) + [prompt_len % room]")],
)
answers.wrong("a budget used up by others is no error", task=2, edits=[("    if room < 1:\n", "    if room < 0:\n")])
# -- task 3
answers.wrong("the queue is first in, first out", task=3, mistake=AT_THE_END, edits=[(ADD, "        self.waiting.append(request)\n")])
answers.wrong(
    "only the arrival counts", task=3, mistake=PRIORITY_IGNORED,
    edits=[(ADD, "        insort(self.waiting, request, key=lambda waiting: waiting.arrival)\n")],
)
answers.wrong(
    "higher numbers first", task=3, mistake=HIGH_FIRST,
    edits=[(ADD, "        insort(self.waiting, request, key=lambda waiting: (-waiting.priority, waiting.arrival))\n")],
)
answers.wrong(
    "only the priority counts", task=3,
    edits=[(ADD, "        insort(self.waiting, request, key=lambda waiting: waiting.priority)\n")],
)
answers.wrong(
    "remove looks among the running only", task=3,
    edits=[("        queue = self.running if request in self.running else self.waiting\n        queue.remove(request)\n",
            "        self.running = [other for other in self.running if other is not request]\n")],
)
answers.wrong("a restart lets them run on", task=3, mistake=STILL_RUNNING, edits=[("        self.running = []\n" + RESTART, RESTART)])
answers.wrong("a restart takes the order given", task=3, edits=[(RESTART, "        self.waiting = list(requests)\n")])
answers.wrong(
    "a restart keeps who waited", task=3,
    edits=[(RESTART, "        self.waiting = sorted({*self.waiting, *requests}, key=lambda request: request.order)\n")],
)
# -- task 4
answers.wrong(
    "everybody has the whole budget", task=4, mistake=OVER_BUDGET,
    edits=[(RUN, RUN.replace("next_tokens(budget)", "next_tokens(self.max_num_batched_tokens)"))],
)
answers.wrong(
    "a prompt that does not fit as a whole waits", task=4, mistake=NO_CHUNK,
    edits=[(RUN, RUN.replace("            if work and", "            if sum(seq.num_uncomputed_tokens for seq in request.live) > budget:\n                continue\n            if work and"))],
)
answers.wrong(
    "a request gets an empty work", task=4, mistake=EMPTY_WORK,
    edits=[(RUN, RUN.replace("            if work and", "            work = work or [(seq, 0) for seq in request.live if seq.table]\n            if work and"))],
)
answers.wrong(
    "stops at the first that has no work", task=4,
    edits=[(RUN, RUN.replace("            if work and", "            if not work:\n                break\n            if work and"))],
)
answers.wrong("the copies are lost", task=4, mistake=COPIES_LOST, edits=[("            step.copies += append.copies\n", "")])
answers.wrong(
    "only the first branch's copies are kept", task=4, mistake=COPIES_LOST,
    edits=[("            step.copies += append.copies\n", "            step.copies = step.copies or append.copies\n")],
)
answers.wrong("fork_ready is forgotten", task=4, mistake=NO_FORK, edits=[("            self.memory.fork_ready(request)\n", "")])
answers.wrong(
    "one token for every request", task=4,
    edits=[("        return num_tokens\n", "        return 1\n")],
)
answers.wrong(
    "only the first branch is computed", task=4,
    edits=[("        for (seq, _), append in zip(work, self.memory.append(work), strict=True):\n", "        work = work[:1]\n        for (seq, _), append in zip(work, self.memory.append(work), strict=True):\n")],
)
answers.wrong(
    "every sequence gets the slots of the first", task=4,
    edits=[("        for (seq, _), append in zip(work, self.memory.append(work), strict=True):\n            step.work.append(Work(request, seq, append.slots))\n",
            "        appends = self.memory.append(work)\n        for (seq, _), append in zip(work, appends, strict=True):\n            step.work.append(Work(request, seq, appends[0].slots))\n")],
)
# -- task 5
answers.wrong("the limit on sequences is forgotten", task=5, mistake=TOO_MANY_SEQS, edits=[(NO_SEAT, "")])
answers.wrong(
    "a request counts as one sequence", task=5, mistake=BRANCHES,
    edits=[(NO_SEAT, NO_SEAT.replace("num_seqs + request.num_seqs > ", "len(self.running) + 1 > "))],
)
answers.wrong(
    "one sequence less than allowed", task=5, mistake=NOT_LEFT,
    edits=[(NO_SEAT, NO_SEAT.replace("num_seqs > self", "num_seqs >= self"))],
)
answers.wrong(
    "the sequences of those just admitted are not counted", task=5, mistake=TOO_MANY_SEQS,
    edits=[("            num_seqs += request.num_seqs\n", "")],
)
answers.wrong(
    "admitted when the first chunk fits", task=5, mistake=ONLY_A_CHUNK,
    edits=[(NO_BLOCKS, NO_BLOCKS.replace("self.memory.blocks_to_admit(request)", "min(self.memory.blocks_to_admit(request), -(-budget // self.memory.block_size))"))],
)
answers.wrong(
    "one block less than is free", task=5, mistake=NOT_LEFT,
    edits=[(NO_BLOCKS, NO_BLOCKS.replace("request) > self", "request) >= self"))],
)
answers.wrong(
    "nothing is promised", task=5, mistake=PROMISES,
    edits=[(NO_BLOCKS, NO_BLOCKS.replace(" - promised", ""))],
)
answers.wrong(
    "promises of those who ran before are forgotten", task=5, mistake=PROMISES,
    edits=[("        promised = sum(self.memory.blocks_promised(request) for request in self.running)\n", "        promised = 0\n")],
)
answers.wrong(
    "promises of those just admitted are forgotten", task=5, mistake=PROMISES,
    edits=[("            promised += self.memory.blocks_promised(request)\n", "")],
)
answers.wrong(
    "the next in the queue that fits is admitted", task=5, mistake=OVERTAKEN,
    edits=[("            request = self.waiting[0]\n" + NO_SEAT,
            "            fitting = [one for one in self.waiting if num_seqs + one.num_seqs <= self.max_num_seqs\n"
            "                       and self.memory.blocks_to_admit(one) <= self.memory.allocator.num_free - promised]\n"
            "            request = (fitting or self.waiting)[0]\n" + NO_SEAT)],
)
answers.wrong(
    "the head is given up whenever it lacks blocks", task=5, mistake=GIVEN_UP_EARLY,
    edits=[(NOT_RUNNING, "")],
)
answers.wrong(
    "the head is never given up", task=5, mistake=NEVER_GIVEN_UP,
    edits=[(NOT_RUNNING + GIVE_UP + "                continue\n", "                break\n")],
)
answers.wrong(
    "after one was given up, the others wait", task=5, mistake="after a request was given up, nobody came in",
    edits=[(GIVE_UP + "                continue\n", GIVE_UP + "                break\n")],
)
answers.wrong(
    "running in the order of admission", task=5, mistake=NOT_IN_ORDER,
    edits=[(ENTER, "            self.waiting.remove(request)\n            self.running.append(request)\n")],
)
answers.wrong("what swaps in is lost", task=5, mistake=SWAP_IN_LOST, edits=[("            step.swap_in += self.memory.admit(request)\n", "            self.memory.admit(request)\n")])
answers.wrong(
    "whoever is admitted has a budget of their own", task=5, mistake=OVER_BUDGET,
    edits=[(FIRST, "            self._take(request, request.next_tokens(self.max_num_batched_tokens), step)\n            budget -= 1\n")],
)
answers.wrong(
    "admitted without any budget left", task=5, mistake="it was admitted without any budget left",
    edits=[("        while self.waiting and budget > 0:\n", "        while self.waiting:\n"),
           (FIRST, "            if budget > 0:\n                budget -= self._take(request, request.next_tokens(budget), step)\n")],
)
answers.wrong(
    "one admission a step", task=5,
    edits=[("            num_seqs += request.num_seqs\n", "            num_seqs += request.num_seqs\n            break\n")],
)
answers.wrong(
    "admitted now, computed from the next step on", task=5,
    edits=[(FIRST, "")],
)
# -- task 6
answers.wrong(
    "the first one gives way", task=6, mistake=WRONG_VICTIM,
    edits=[("            candidates = self.running[self.running.index(request) :]\n", "            candidates = self.running\n"),
           ("            choice = self.memory.parts.preemption.choose_victim([candidate.order for candidate in candidates])\n", "            choice = 0\n")],
)
answers.wrong(
    "somebody else must give way, even one from before", task=6, mistake=EARLIER_VICTIM,
    edits=[("            candidates = self.running[self.running.index(request) :]\n", "            candidates = [other for other in self.running if other is not request]\n")],
)
answers.wrong(
    "the last that came gives way, whatever its priority", task=6, mistake="the last that came gave way, whatever its priority",
    edits=[("            candidates = self.running[self.running.index(request) :]\n", "            candidates = self.running\n"),
           ("choose_victim([candidate.order for candidate in candidates])", "choose_victim([(candidate.arrival, 0) for candidate in candidates])")],
)
answers.wrong(
    "one victim has to be enough", task=6,
    edits=[("        while self.memory.blocks_needed(work) > self.memory.allocator.num_free:\n", "        if self.memory.blocks_needed(work) > self.memory.allocator.num_free:\n")],
)
answers.wrong(
    "the victim is not noted", task=6, mistake=NOT_NOTED,
    edits=[("            step.preempted.append(victim)\n", ""), ("            if request in step.preempted:\n", "            if request not in self.running:\n")],
)
answers.wrong(
    "a request that runs alone is preempted", task=6, mistake=PREEMPTED_ALONE, edits=[(ALONE, "            candidates")],
)
answers.wrong(
    "whoever lacks a block is given up", task=6,
    edits=[("            if len(self.running) == 1:\n", "            if self.running:\n")],
)
answers.wrong(
    "goes on with the work of a request that gave way", task=6,
    edits=[("            if victim is request:\n                return False\n        return True\n", "        return True\n")],
)
answers.wrong(
    "who was preempted in this step is asked for work", task=6,
    edits=[("            if request in step.preempted:\n                continue\n", "")],
)
answers.wrong(
    "the preempted request is lost", task=6, mistake=LOST_REQUEST,
    edits=[(PREEMPT, "        self.running.remove(request)\n        return copies\n")],
)
answers.wrong(
    "the preempted request queues up behind everybody", task=6, mistake=AT_THE_END,
    edits=[(PREEMPT, "        self.running.remove(request)\n        self.waiting.append(request)\n        return copies\n")],
)
answers.wrong(
    "admits although somebody was preempted", task=6, mistake=ADMITTED_TOO,
    edits=[("        if self.waiting and not step.preempted:\n", "        if any(request not in step.preempted for request in self.waiting[1:]):\n"
            "            first = self.waiting\n            self.waiting = [request for request in first if request not in step.preempted]\n"
            "            self._admit_waiting(step, budget)\n            for request in step.preempted:\n                self.add(request)\n"
            "        elif self.waiting and not step.preempted:\n")],
)
answers.wrong(
    "never swaps", task=6, mistake="the victim was not swapped, or its copies were lost",
    edits=[("swap=self.preemption_mode == \"swap\")", "swap=False)")],
)
answers.wrong(
    "what swaps out is lost", task=6, mistake="the victim was not swapped, or its copies were lost",
    edits=[("            step.swap_out += self.preempt(victim, swap", "            self.preempt(victim, swap")],
)
# -- task 7
answers.wrong("nobody ages", task=7, mistake=NEVER_AGES, edits=[("                request.priority -= 1\n", "                pass\n")])
answers.wrong(
    "the count is set back by running", task=7, mistake=SET_BACK,
    edits=[("        step = super().schedule()\n", "        step = super().schedule()\n        for request in self.running:\n            self._num_waited.pop(request, None)\n")],
)
answers.wrong(
    "running makes old, too", task=7, mistake=COUNTS_RUNNING,
    edits=[(AGE, AGE.replace("self.waiting:", "[*self.waiting, *self.running]:"))],
)
answers.wrong("the queue keeps its old order", task=7, mistake=NOT_SORTED, edits=[(SORT, "")])
answers.wrong(
    "ages before the step", task=7, mistake=BEFORE_STEP,
    edits=[("        step = super().schedule()\n", ""), (SORT + "        return step\n", SORT + "        return super().schedule()\n")],
)
answers.wrong(
    "gains once only", task=7, mistake="it gained once only",
    edits=[("            if self._num_waited[request] % self.patience == 0:\n", "            if self._num_waited[request] == self.patience:\n")],
)
answers.wrong(
    "gains in every step once patience is over", task=7,
    edits=[("            if self._num_waited[request] % self.patience == 0:\n", "            if self._num_waited[request] >= self.patience:\n")],
)
answers.wrong("any patience will do", task=7, edits=[('        check_int("patience", patience, minimum=1)\n', "")])

# -- found by trying to break the grader: arguments changed, things shared, cases at the edge

answers.wrong("empties the caller's list", task=1, edits=[
    ("        start += max(batch)\n",
     '''        start += max(batch)
    if isinstance(output_lens, list):
        output_lens.clear()
'''),
])
answers.wrong("takes the caller's list for its queue", task=3, edits=[
    ("        self.waiting = sorted(requests, key=lambda request: request.order)\n",
     '''        self.waiting = requests if isinstance(requests, list) else list(requests)
        self.waiting.sort(key=lambda r: r.order)
'''),
])
answers.wrong("asks once whether anybody runs", task=5, edits=[
    ('''        ### BEGIN SOLUTION
        promised = sum(self.memory.blocks_promised(request) for request in self.running)
''',
     '''        ### BEGIN SOLUTION
        runs = bool(self.running)
        promised = sum(self.memory.blocks_promised(request) for request in self.running)
'''),
    ("                if self.running:\n",
     "                if runs:\n"),
])
answers.wrong("keeps the copies of the last one that came back", task=5, edits=[
    ("            step.swap_in += self.memory.admit(request)\n",
     "            step.swap_in = self.memory.admit(request)\n"),
])
answers.wrong("keeps the copies of the last victim", task=6, edits=[
    ('            step.swap_out += self.preempt(victim, swap=self.preemption_mode == "swap")\n',
     '            step.swap_out = self.preempt(victim, swap=self.preemption_mode == "swap")\n'),
])
answers.wrong("counts by name, for ever", task=7, edits=[
    ('''            self._num_waited[request] += 1
            if self._num_waited[request] % self.patience == 0:
''',
     '''            self._num_waited[request.request_id] += 1
            if self._num_waited[request.request_id] % self.patience == 0:
'''),
    ("        self._num_waited.pop(request, None)  # or the count would hold every request there ever was\n",
     ''''''),
])
answers.wrong("who was preempted has not waited", task=7, edits=[
    ("        for request in self.waiting:\n",
     "        for request in [x for x in self.waiting if x not in step.preempted]:\n"),
])
answers.wrong("an aging scheduler that never swaps", task=7, edits=[
    ("        super().__init__(memory, max_num_batched_tokens, max_num_seqs, preemption_mode)\n",
     "        super().__init__(memory, max_num_batched_tokens, max_num_seqs)\n"),
])

answers.right(
    "step by step, and one method for everything",
    source='''
from minipaged.scheduler import Schedule, Work


def _simulate(output_lens, max_num_seqs, may_enter):
    if max_num_seqs < 1:
        raise ValueError(f"max_num_seqs={max_num_seqs}")
    times, running, queue, step = [None] * len(output_lens), {}, list(range(len(output_lens))), 0
    while queue or running:
        if may_enter(running):
            while queue and len(running) < max_num_seqs:
                index = queue.pop(0)
                running[index] = output_lens[index]
                times[index] = (step, step + output_lens[index])
        step += 1
        running = {index: left - 1 for index, left in running.items() if left > 1}
    return times


def static_timeline(output_lens, max_num_seqs):
    return _simulate(output_lens, max_num_seqs, lambda running: not running)


def continuous_timeline(output_lens, max_num_seqs):
    return _simulate(output_lens, max_num_seqs, lambda running: True)


def chunk_sizes(prompt_len, num_decoding, max_num_batched_tokens):
    if num_decoding >= max_num_batched_tokens:
        raise ValueError(f"a budget of {max_num_batched_tokens} and {num_decoding} that decode")
    chunks = []
    while sum(chunks) < prompt_len:
        chunks.append(min(prompt_len - sum(chunks), max_num_batched_tokens - num_decoding))
    return chunks


class Scheduler:
    def __init__(self, memory, max_num_batched_tokens, max_num_seqs, preemption_mode="recompute"):
        self.memory, self.tokens, self.seqs, self.mode = memory, max_num_batched_tokens, max_num_seqs, preemption_mode
        self.max_num_batched_tokens, self.max_num_seqs, self.preemption_mode = self.tokens, self.seqs, self.mode
        self.waiting, self.running = [], []

    def add(self, request):
        place = len(self.waiting)
        while place > 0 and self.waiting[place - 1].order > request.order:
            place -= 1
        self.waiting.insert(place, request)

    def remove(self, request):
        self.waiting = [one for one in self.waiting if one is not request]
        self.running = [one for one in self.running if one is not request]

    def restart(self, requests):
        self.waiting, self.running = [], []
        for request in requests:
            self.add(request)

    def preempt(self, request, swap=False):
        self.remove(request)
        self.add(request)
        return self.memory.preempt(request, swap)

    def schedule(self):
        step = Schedule()
        for request in tuple(self.running):
            if request in self.running:
                self.memory.fork_ready(request)
                work = request.next_tokens(self.tokens - step.num_tokens)
                if self.memory.blocks_needed(work) > self.memory.allocator.num_free:
                    work = self.free_blocks_for(request, work, step)
                self.put(request, work, step)
        while self.waiting and not step.preempted and step.num_tokens < self.tokens:
            head, running = self.waiting[0], self.running
            if sum(one.num_seqs for one in [head, *running]) > self.seqs:
                return step
            free = self.memory.allocator.num_free - sum(map(self.memory.blocks_promised, running))
            if free >= self.memory.blocks_to_admit(head):
                self.waiting = self.waiting[1:]
                self.running = sorted([*running, head], key=lambda one: one.order)
                step.swap_in.extend(self.memory.admit(head))
                self.put(head, head.next_tokens(self.tokens - step.num_tokens), step)
            elif running:
                return step
            else:
                self.give_up(head, step)
        return step

    def put(self, request, work, step):
        for (sequence, _), (slots, copies) in zip(work, self.memory.append(work)):
            step.work.append(Work(request, sequence, slots))
            step.copies.extend(copies)

    def give_up(self, request, step):
        request.finish("capacity")
        self.remove(request)
        step.out_of_capacity.append(request)

    def free_blocks_for(self, request, work, step):
        while self.memory.blocks_needed(work) > self.memory.allocator.num_free:
            *_, last = self.running
            if last is self.running[0]:
                self.give_up(request, step)
                return []
            step.swap_out.extend(self.preempt(last, self.mode == "swap"))
            step.preempted.append(last)
            if last is request:
                return []
        return work


class AgingScheduler(Scheduler):
    def __init__(self, *args, patience=8, **kwargs):
        super().__init__(*args, **kwargs)
        if patience < 1:
            raise ValueError(f"patience {patience}")
        self.patience, self.waited = patience, {}

    def schedule(self):
        step = super().schedule()
        for request in self.waiting:
            self.waited[request] = self.waited.get(request, 0) + 1
            request.priority -= self.waited[request] % self.patience == 0
        self.waiting.sort(key=lambda one: one.order)
        return step
''',
)
answers.right(
    "admission asks anew each time, with the sums in helpers",
    edits=[
        ("        promised = sum(self.memory.blocks_promised(request) for request in self.running)\n        num_seqs = sum(request.num_seqs for request in self.running)\n", ""),
        (NO_SEAT, "            if sum(one.num_seqs for one in [request, *self.running]) > self.max_num_seqs:\n                return\n"),
        (NO_BLOCKS, "            promised = sum(map(self.memory.blocks_promised, self.running))\n"
                    "            if self.memory.blocks_to_admit(request) + promised > self.memory.allocator.num_free:\n"),
        ("            # Asked after its first chunk has been taken: what it holds already is not promised any more.\n            promised += self.memory.blocks_promised(request)\n            num_seqs += request.num_seqs\n", ""),
        (ADD, "        self.waiting = sorted([*self.waiting, request], key=lambda one: (one.priority, one.arrival))\n"),
        (ENTER, "            self.waiting = self.waiting[1:]\n            self.running = sorted([*self.running, request], key=lambda one: one.order)\n"),
    ],
)
answers.right(
    "the victim without a list of candidates, counts that go down",
    edits=[
        ("            candidates = self.running[self.running.index(request) :]\n"
         "            choice = self.memory.parts.preemption.choose_victim([candidate.order for candidate in candidates])\n"
         "            victim = candidates[choice]\n", "            victim = max(self.running, key=lambda running: running.order)\n"),
        (AGE + "            if self._num_waited[request] % self.patience == 0:\n",
         "        for request in self.waiting:\n            self._num_waited[request] -= 1\n            if -self._num_waited[request] % self.patience == 0:\n"),
        ("            self.memory.fork_ready(request)\n            work = request.next_tokens(budget)\n            if work and self._make_room(request, work, step):\n",
         "            self.memory.fork_ready(request)\n            work = request.next_tokens(budget)\n            if len(work) == 0:\n                continue\n            if self._make_room(request, work, step):\n"),
        ("        queue = self.running if request in self.running else self.waiting\n        queue.remove(request)\n",
         "        for queue in (self.running, self.waiting):\n            if request in queue:\n                queue.remove(request)\n"),
        ("    free_from = [0] * max_num_seqs\n", "    free_from = dict.fromkeys(range(max_num_seqs), 0)\n"),
        ("        start = free_from[0]\n        heapreplace(free_from, start + output_len)\n",
         "        seat = min(free_from, key=free_from.get)\n        start = free_from[seat]\n        free_from[seat] += output_len\n"),
    ],
)

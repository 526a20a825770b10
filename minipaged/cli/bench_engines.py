"""The engines that `minipaged bench` compares, each in a process of its own that speaks JSON lines.

A peak of memory belongs to one process, libraries fight over threads when they share one, and vLLM needs an
environment that is not ours. So every engine, ours included, is started once, is told on stdin what to serve
and answers on stdout; until it is asked again it waits there and uses no CPU. `bench.py` decides what to
serve and in which order, and evaluates the results. Only the standard library is imported at the top, because
vLLM's environment runs this file and has no minipaged.

An engine's `run(prompts, max_tokens)` serves requests greedily, max_tokens[i] tokens for prompts[i], past any
end of text and without prefix caching (repeated rounds would flatter it), and returns: "token_ids", a list
per request; "token_times", when each of them came, in seconds since the start; "kv_reserved_bytes" and
"kv_used_bytes", K/V memory at the peak; "kv_estimated", which of those two were computed from lengths, not
measured; and for ours the "steps" and their times in seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TokenIds = list[int]
Result = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """What an engine starts from. engine: a name in `ENGINES`. model: a folder, or "tiny" for ours alone.
    max_model_len: of the longest request, prompt and output. The pool, for engines that have one: num_blocks
    blocks of block_size tokens of kv_bytes_per_token."""

    engine: str
    model: str
    dtype: str
    threads: int
    max_model_len: int
    block_size: int
    num_blocks: int
    kv_bytes_per_token: int

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.block_size * self.kv_bytes_per_token


class TokenTimes:
    """When each token of each request came, in seconds since this was made: `seconds`, a list per request.

    Example: after `note(0, 1)` and `note(0, 3)`, `seconds[0]` has three times, the last two alike.
    """

    def __init__(self, num_requests: int) -> None:
        self._began = time.perf_counter()
        self.seconds: list[list[float]] = [[] for _ in range(num_requests)]

    def note(self, index: int, num_tokens: int, at: float | None = None) -> None:
        """Request `index` has num_tokens tokens now, or at a time of `time.perf_counter`."""
        seconds = self.seconds[index]
        now = (time.perf_counter() if at is None else at) - self._began
        seconds += [now] * (num_tokens - len(seconds))


class MiniPaged:
    """Our own engine; the only one that counts its blocks and steps for us."""

    def __init__(self, setup: Setup) -> None:
        import torch

        from minipaged import LLM

        self.version, self.setup = f"minipaged, torch {torch.__version__}", setup
        self.engine = LLM(
            setup.model,
            dtype=setup.dtype,
            device="cpu",
            block_size=setup.block_size,
            num_blocks=setup.num_blocks,
            enable_prefix_caching=False,
        ).engine

    def run(self, prompts: list[TokenIds], max_tokens: list[int]) -> Result:
        from minipaged import SamplingParams

        before, most_blocks, times = self.engine.stats(), 0, TokenTimes(len(prompts))
        token_ids: list[TokenIds] = [[] for _ in prompts]
        for index, prompt in enumerate(prompts):
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens[index], ignore_eos=True)
            self.engine.add_request(str(index), prompt, params)
        while self.engine.has_unfinished_requests():
            just_freed = 0
            for index, output in ((int(output.request_id), output) for output in self.engine.step()):
                token_ids[index] = output.outputs[0].token_ids
                times.note(index, len(token_ids[index]))
                if output.finished:
                    lens = (len(prompts[index]), max_tokens[index])
                    just_freed += peak_blocks([lens], self.setup.block_size)
            most_blocks = max(most_blocks, self.engine.stats().blocks_used + just_freed)
        after, cache = self.engine.stats(), self.engine.kv_cache
        reserved = cache.k.nbytes + cache.v.nbytes
        used = most_blocks * reserved // after.num_blocks
        spent = {"steps": "steps", "step_seconds": "step_time", "forward_seconds": "forward_time"}
        result = {name: getattr(after, field) - getattr(before, field) for name, field in spent.items()}
        return result | _kv(token_ids, times, reserved, used)


class Padded:
    """transformers' `generate`: one batch, padded on the left, that runs until its longest request ends.

    Its cache grows ("hf-padded") or is allocated whole at the start ("hf-static").
    """

    def __init__(self, setup: Setup) -> None:
        import torch
        import transformers

        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.setup = setup
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            setup.model, dtype=getattr(torch, setup.dtype), local_files_only=True
        )
        self.model.generation_config.update(eos_token_id=None, pad_token_id=0, do_sample=False)

    def run(self, prompts: list[TokenIds], max_tokens: list[int]) -> Result:
        import torch

        step, times = -1, TokenTimes(len(prompts))

        def put(token_ids: torch.Tensor) -> None:
            """Called with the prompts, and after each step with a token for every row."""
            nonlocal step
            step += 1
            for index, num_tokens in enumerate(max_tokens):
                times.note(index, min(step, num_tokens))

        width = max(map(len, prompts))
        input_ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        output = self.model.generate(
            input_ids,
            attention_mask=mask,
            max_new_tokens=max(max_tokens),
            return_dict_in_generate=True,
            cache_implementation="static" if self.setup.engine == "hf-static" else None,
            streamer=SimpleNamespace(put=put, end=lambda: None),
        )
        rows = output.sequences[:, width:].tolist()
        token_ids = [row[:num_tokens] for row, num_tokens in zip(rows, max_tokens, strict=True)]
        reserved = sum(layer.keys.nbytes + layer.values.nbytes for layer in output.past_key_values.layers)
        num_used = sum(map(len, prompts)) + sum(max_tokens) - len(prompts)  # no last token's K/V is stored
        used = num_used * self.setup.kv_bytes_per_token
        return _kv(token_ids, times, reserved, used, "kv_used_bytes")


class ContinuousBatching(Padded):
    """transformers' continuous batching, with a pool of the size of ours."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        from transformers import ContinuousBatchingConfig

        config = ContinuousBatchingConfig(
            page_size=setup.block_size,
            num_blocks=setup.num_blocks,
            max_batch_tokens=512,
            max_requests_per_batch=256,
            allow_block_sharing=False,
        )
        self.manager = self.model.init_continuous_batching(continuous_batching_config=config)
        self.manager.start()

    def run(self, prompts: list[TokenIds], max_tokens: list[int]) -> Result:
        times = TokenTimes(len(prompts))
        for index, prompt in enumerate(prompts):
            self.manager.add_request(
                prompt, request_id=str(index), max_new_tokens=max_tokens[index], record_timestamps=True
            )
        token_ids: list[TokenIds] = [[] for _ in prompts]
        for _ in prompts:
            result = self.manager.get_result()
            if result is None or result.error:
                raise RuntimeError(f"continuous batching failed: {result and result.error}")
            index = int(result.request_id)
            token_ids[index] = list(result.generated_tokens)
            for number, at in enumerate(result.timestamps or [], start=1):
                times.note(index, number, at)
        return _kv_of_pool(token_ids, times, prompts, self.setup)


class VLLM:
    """vLLM's CPU build, eager ("vllm") or with torch.compile ("vllm-compiled", which starts slowly).

    Its pool has the bytes of ours, in blocks of its own size: on a CPU that must be a multiple of 32.
    """

    def __init__(self, setup: Setup) -> None:
        import torch
        import vllm  # type: ignore[import-not-found]

        self.version = f"vLLM {vllm.__version__}, torch {torch.__version__}"
        self.llm = vllm.LLM(
            setup.model,
            dtype=setup.dtype,
            max_model_len=setup.max_model_len,
            max_num_batched_tokens=2048,
            kv_cache_memory_bytes=setup.pool_bytes,
            enable_prefix_caching=False,
            enforce_eager=setup.engine == "vllm",
        )
        pool = self.llm.llm_engine.vllm_config.cache_config
        self.setup = replace(setup, block_size=pool.block_size, num_blocks=pool.num_gpu_blocks)

    def run(self, prompts: list[TokenIds], max_tokens: list[int]) -> Result:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

        engine, times = self.llm.llm_engine, TokenTimes(len(prompts))
        for index, (prompt, num_tokens) in enumerate(zip(prompts, max_tokens, strict=True)):
            params = SamplingParams(
                temperature=0.0, max_tokens=num_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
            )
            engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
        token_ids: list[TokenIds] = [[] for _ in prompts]
        while engine.has_unfinished_requests():
            for output in engine.step():
                index = int(output.request_id)
                token_ids[index] += output.outputs[0].token_ids
                times.note(index, len(token_ids[index]))
        return _kv_of_pool(token_ids, times, prompts, self.setup)


ENGINES: dict[str, Callable[[Setup], Any]] = {
    "minipaged": MiniPaged,
    "hf-padded": Padded,
    "hf-static": Padded,
    "hf-cb": ContinuousBatching,
    "vllm": VLLM,
    "vllm-compiled": VLLM,
}


def peak_blocks(lens: Sequence[tuple[int, int]], block_size: int) -> int:
    """The most blocks held at once by requests of (prompt, output) tokens that all start together.

    Example: `peak_blocks([(4, 6), (8, 1)], block_size=4) == 3`: 1 + 2 at the start, 3 and 0 at the end.
    """
    steps = range(max(output for _, output in lens))
    return max(sum(-(-(prompt + t) // block_size) for prompt, output in lens if t < output) for t in steps)


def _kv(token_ids: list[TokenIds], times: TokenTimes, reserved: int, used: int, *estimated: str) -> Result:
    return {
        "token_ids": token_ids,
        "token_times": times.seconds,
        "kv_reserved_bytes": reserved,
        "kv_used_bytes": used,
        "kv_estimated": list(estimated),
    }


def _kv_of_pool(
    token_ids: list[TokenIds], times: TokenTimes, prompts: list[TokenIds], setup: Setup
) -> Result:
    """For an engine that has a pool like ours but doesn't say how much of it is in use."""
    lens = [(len(prompt), len(output)) for prompt, output in zip(prompts, token_ids, strict=True)]
    used = peak_blocks(lens, setup.block_size) * setup.block_size * setup.kv_bytes_per_token
    return _kv(token_ids, times, setup.pool_bytes, used, "kv_reserved_bytes", "kv_used_bytes")


def memory() -> dict[str, int | None]:
    """Bytes of RAM that this process holds now and has held at most: "rss_bytes" and "peak_rss_bytes".

    From /proc where there is one: getrusage would count what the parent held before it started us. Elsewhere
    (macOS) only the peak is known and stands for both, or nothing is (Windows).
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        now, peak = (int(fields[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))
        return {"rss_bytes": now, "peak_rss_bytes": peak}
    try:
        import resource
    except ImportError:
        return {"rss_bytes": None, "peak_rss_bytes": None}
    return dict.fromkeys(("rss_bytes", "peak_rss_bytes"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


class EngineProcess:
    """The near end, for a `with`: starts an engine's process, asks it to serve, and ends it.

    Raises: RuntimeError with the last words of the process when it ends instead of answering.
    """

    def __init__(self, setup: Setup, python: str | None = None) -> None:
        """`python`: the interpreter of another environment, which need not have minipaged."""
        self.setup = setup
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by __exit__
        here = [sys.executable, "-m", "minipaged.cli.bench_engines"]
        program = [python, "-I", __file__] if python else here
        # No network; and vLLM in one process with the threads it is given, not pinned, like the others.
        environment = {
            "OMP_NUM_THREADS": str(setup.threads),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        iomp = Path(python or "").absolute().parents[1] / "lib" / "libiomp5.so"
        if python and iomp.exists():  # vLLM brings Intel's OpenMP, asks for it, and is half as fast without
            environment |= {"LD_PRELOAD": str(iomp), "KMP_BLOCKTIME": "5"}
        self._process = subprocess.Popen(
            [*program, json.dumps(asdict(setup))],
            env=os.environ | environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.version: str = self._read()["version"]

    def run(self, prompts: list[TokenIds], max_tokens: list[int]) -> Result:
        """Serve; the result also has "seconds", from token ids in to token ids out, and `memory()`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; reading says why
            self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> Result:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            last_words = (self._errors.read().strip().splitlines() or ["it left no message"])[-1]
            raise RuntimeError(f"{self.setup.engine} ended with status {status}: {last_words}")
        return json.loads(line)

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def main() -> None:
    """The far end: a `Setup` as JSON in the first argument, then a request a line on stdin."""
    # Libraries print what they like: their stdout becomes stderr, the real one is kept for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    setup = Setup(**json.loads(sys.argv[1]))
    engine = ENGINES[setup.engine](setup)
    print(json.dumps({"version": engine.version}), file=answers, flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        result = engine.run(**json.loads(line))
        result |= {"seconds": time.perf_counter() - started} | memory()
        print(json.dumps(result), file=answers, flush=True)
    os._exit(0)  # at the end of stdin, without waiting for threads that a library has left running


if __name__ == "__main__":
    main()

"""The command line: what a person sees, what a script can parse, and what happens when something is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minipaged import LLM, SamplingParams
from minipaged.cli import LAZY_COMMANDS, main, printable, read_prompts

OWN_COMMANDS = ["fetch", "generate", "chat", "doctor", "demo"]
CACHE_LINE = re.compile(r"prefix cache: (\d+) of (\d+) tokens were already there \((\d+) % of the prefill")
NOT_FOR_SERVING = ("transformers", "matplotlib", "gguf", "jupyterlab", "IPython", "rich")


def run(*args: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, args, input=stdin)


def tiny(*args: str, stdin: str = "") -> Result:
    return run(*args, "--model", "tiny", "--max-tokens", "8", stdin=stdin)


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


# -- help and imports --------------------------------------------------------------------------------


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(f"  {name} " in result.stdout for name in [*OWN_COMMANDS, *LAZY_COMMANDS])


@pytest.mark.parametrize("command", OWN_COMMANDS)
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\s+minipaged {command}", result.stdout)


@pytest.mark.parametrize("args", [[], *([name] for name in OWN_COMMANDS)])
def test_help_does_not_wait_for_torch(args: list[str]) -> None:
    result = python(
        f"import sys; from minipaged.cli import main; main({[*args, '--help']}, standalone_mode=False); "
        "print('torch' in sys.modules)"
    )
    assert result.stdout.startswith("Usage: ") and result.stdout.endswith("False\n")


def test_generating_imports_nothing_that_serving_does_not_need() -> None:
    args = ["generate", "--model", "tiny", "--max-tokens", "2", "Hello"]
    result = python(
        f"import sys; from minipaged.cli import main; main({args}, standalone_mode=False); "
        f"print([name for name in {NOT_FOR_SERVING} if name in sys.modules])"
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_package_runs_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "minipaged", "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.startswith("Usage: minipaged ")


# -- generate ----------------------------------------------------------------------------------------


def test_generate_prints_what_the_engine_generates() -> None:
    expected = LLM("tiny").generate("Hello", SamplingParams(temperature=0.0, max_tokens=8))
    assert tiny("generate", "Hello").stdout == printable(expected[0].outputs[0].text) + "\n"


def test_json_lines_hold_the_exact_output_in_the_order_of_the_prompts() -> None:
    prompts = ["a longer first prompt", "b"]
    result = tiny("generate", "--json", *prompts)
    expected = LLM("tiny").generate(prompts, SamplingParams(temperature=0.0, max_tokens=8))
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"request": number, "sample": 0, "text": output.outputs[0].text,
         "token_ids": output.outputs[0].token_ids, "finish_reason": "length", "num_cached_tokens": 0}
        for number, output in enumerate(expected)
    ]


def test_every_sample_is_a_line_and_a_seed_repeats_it() -> None:
    args = ("generate", "--json", "--n", "3", "--temperature", "1", "--seed", "5", "Hello")
    first, second = tiny(*args), tiny(*args)
    rows = [json.loads(line) for line in first.stdout.splitlines()]
    assert [(row["request"], row["sample"]) for row in rows] == [(0, 0), (0, 1), (0, 2)]
    assert len({tuple(row["token_ids"]) for row in rows}) == 3
    assert first.stdout == second.stdout


def test_several_answers_are_told_apart_by_their_prompts() -> None:
    lines = tiny("generate", "first", "second").stdout.splitlines()
    assert "[1] first" in lines and "[2] second" in lines


def test_a_stop_text_ends_the_answer() -> None:
    whole = tiny("generate", "Hello", "--json").stdout
    text = json.loads(whole)["text"]
    stopped = json.loads(tiny("generate", "Hello", "--json", "--stop", text[3]).stdout)
    assert stopped["finish_reason"] == "stop" and stopped["text"] == text[: text.index(text[3])]


def test_chat_puts_the_prompt_into_the_models_template() -> None:
    llm = LLM("tiny")
    prompt = llm.tokenizer.encode_chat([{"role": "user", "content": "Hello"}])
    expected = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=8))[0].outputs[0].token_ids
    assert json.loads(tiny("generate", "--chat", "--json", "Hello").stdout)["token_ids"] == expected


@pytest.mark.parametrize("content", ["one\n\ntwo\n", '{"prompt": "one"}\n{"prompt": "two", "id": 7}\n'])
def test_prompts_come_from_a_file_or_stdin_as_lines_or_json_lines(content: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text(content)
    expected = tiny("generate", "--json", "one", "two").stdout
    assert expected
    assert tiny("generate", "--json", "--file", str(file)).stdout == expected
    assert tiny("generate", "--json", stdin=content).stdout == expected


def test_a_prompt_read_from_a_line_keeps_its_spaces() -> None:
    assert read_prompts(["  indented \r\n", " \n"]) == ["  indented "]


@pytest.mark.parametrize("second", ['{"text": "no prompt"}', '{"prompt": 3}', "plain", "[1]"])
def test_a_bad_json_line_is_named_by_its_number(second: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"line 3 is {second}")):
        read_prompts(['{"prompt": "good"}\n', "\n", second])


def test_stats_go_to_stderr_and_leave_stdout_to_the_answer() -> None:
    result = tiny("generate", "Hello", "--stats")
    assert "8 generated" in result.stderr and "blocks" not in result.stdout


def test_an_answer_that_outgrows_the_pool_says_so() -> None:
    result = tiny("generate", "0123456", "--num-blocks", "1", "--block-size", "8")
    assert result.exit_code == 0 and "raise --num-blocks" in result.stderr


def test_control_characters_never_reach_the_terminal() -> None:
    assert printable("a\x1b[31m\tb\n\x07\x9b") == "a\ufffd[31m\tb\n\ufffd\ufffd"


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model", "no-such-model"), "no-such-model"),
        (("--model", "tiny", "--block-size", "0"), "block_size must be a whole number of at least 1"),
        (("--model", "tiny", "--preemption-mode", "swap"), "num_cpu_blocks"),
        (("--model", "tiny", "--dtype", "int4"), "'int4'"),
        (("--model", "tiny", "--temperature", "-1"), "temperature must be 0 (greedy) or more, got -1.0"),
        (("--model", "tiny", "--n", "2"), "n=2 greedy samples"),
        (("--model", "tiny", "--num-blocks", "1", "--block-size", "2"), "the pool has 1"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_1(args: tuple[str, ...], message: str) -> None:
    result = run("generate", "Hello", *args)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ") and message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "args",
    [
        ("generate", "--no-such-option"),
        ("generate", "Hello", "--max-tokens", "many"),
        ("generate", "--file", "/no/such/file"),
        ("generate", "Hello", "--file", __file__),
        ("no-such-command",),
    ],
)
def test_wrong_usage_is_exit_code_2(args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.exit_code == 2 and "Usage: " in result.stderr


def test_empty_input_is_refused_before_a_model_is_loaded() -> None:
    result = run("generate", "--model", "no-such-model", stdin="\n\n")
    assert result.exit_code == 1 and "no prompts" in result.stderr


def test_fetching_an_unknown_model_says_which_there_are() -> None:
    result = run("fetch", "no-such-model")
    assert result.exit_code == 1 and "smollm2-135m" in result.stderr


def test_without_the_real_model_the_tiny_one_answers_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path))
    result = run("generate", "Hello", "--max-tokens", "8")
    assert result.exit_code == 0 and "minipaged fetch" in result.stderr
    assert result.stdout == tiny("generate", "Hello").stdout


# -- chat --------------------------------------------------------------------------------------------


def cache_lines(result: Result) -> list[tuple[int, ...]]:
    return [tuple(map(int, match)) for match in CACHE_LINE.findall(result.stdout)]


def test_the_second_turn_finds_the_first_in_the_prefix_cache() -> None:
    first, second = cache_lines(tiny("chat", stdin="a question that fills some blocks\nand another\n"))
    assert first[0] == 0
    assert second[0] >= first[1] // 16 * 16 > 0
    assert second[2] == round(100 * second[0] / second[1])


def test_without_prefix_caching_the_second_turn_finds_nothing() -> None:
    result = tiny("chat", "--no-prefix-caching", stdin="a question that fills some blocks\nand another\n")
    assert [hits for hits, *_ in cache_lines(result)] == [0, 0]


def test_reset_forgets_the_conversation_but_not_the_system_prompt() -> None:
    result = tiny("chat", "--system", "Be brief.", stdin="Hello\n/reset\nHello\n")
    (_, first, _), (_, second, _) = cache_lines(result)
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert first == second == len(LLM("tiny").tokenizer.encode_chat(prompt))


def test_stats_are_shown_and_exit_leaves() -> None:
    result = tiny("chat", stdin="Hello\n/stats\n/exit\nnot reached\n")
    assert result.exit_code == 0
    assert "8 generated" in result.stdout and "not reached" not in result.stdout


def test_a_conversation_too_long_for_the_pool_is_refused_and_a_reset_helps() -> None:
    stdin = f"Hello\n{'x' * 100}\n/reset\nHello\n"
    result = tiny("chat", "--num-blocks", "4", stdin=stdin)
    assert result.exit_code == 0
    assert "the pool has 4" in result.stderr and "/reset" in result.stderr
    (_, first, _), (_, last, _) = cache_lines(result)
    assert first == last


def test_a_refused_question_is_not_part_of_the_conversation() -> None:
    refused = tiny("chat", "--num-blocks", "6", stdin=f"Hi\n{'x' * 100}\nHo\n")
    never_asked = tiny("chat", "--num-blocks", "6", stdin="Hi\nHo\n")
    assert cache_lines(refused) == cache_lines(never_asked) != []


def test_the_real_model_answers_and_the_next_turn_finds_all_full_blocks(real_model: Path) -> None:
    questions = "What is the capital of France? Answer in one sentence.\nAnd of Italy?\n"
    result = run("chat", "--model", str(real_model), "--max-tokens", "12", stdin=questions)
    assert "The capital of France is Paris." in result.stdout
    num_answered = int(re.findall(r"^(\d+) tokens", result.stdout, re.MULTILINE)[0])
    (_, prompt, _), (hits, *_) = cache_lines(result)
    # the last token of an answer is sampled but never computed
    assert hits == (prompt + num_answered - 1) // 16 * 16


def test_fetch_says_where_the_model_is_and_what_it_was_made_from(real_model: Path) -> None:
    result = run("fetch")
    assert result.exit_code == 0
    assert str(real_model) in result.stdout and "(from " in result.stdout


# -- on a terminal -----------------------------------------------------------------------------------


class Terminal:
    """A command on a pseudo-terminal, as a person would have it."""

    def __init__(self, args: list[str], columns: int = 100) -> None:
        pty = pytest.importorskip("pty")
        self.screen = ""
        self.side, theirs = pty.openpty()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": str(columns), "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minipaged", *args], stdin=theirs, stdout=theirs, stderr=theirs,
            env=environment, start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(self.side, False)

    def read_until(self, pattern: str, seconds: float = 60.0) -> str:
        """Read on until the pattern appears in what was not yet matched; returns that part."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            match = re.search(pattern, self.screen)
            if match:
                seen, self.screen = self.screen[: match.end()], self.screen[match.end() :]
                return seen
            self._read()
        raise AssertionError(f"{pattern!r} did not appear in {self.screen!r}")

    def _read(self) -> None:
        try:
            self.screen += os.read(self.side, 65536).decode(errors="replace")
        except (BlockingIOError, OSError):
            time.sleep(0.02)

    def type(self, text: str) -> None:
        os.write(self.side, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def exit_code(self) -> int:
        """Wait for the end, reading what is still written."""
        end = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < end:
            self._read()
        self._read()
        return self.process.wait(timeout=0.1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.side)


@contextmanager
def terminal(*args: str) -> Iterator[Terminal]:
    with closing(Terminal(list(args))) as opened:
        yield opened


def test_one_prompt_on_a_terminal_streams_and_gives_the_same_text() -> None:
    with terminal("generate", "--model", "tiny", "--max-tokens", "8", "Hello") as screen:
        assert screen.exit_code() == 0
        assert tiny("generate", "Hello").stdout.strip("\n") in screen.screen.replace("\r\n", "\n")


def test_no_prompt_on_a_terminal_is_wrong_usage_not_a_silent_wait() -> None:
    with terminal("generate") as screen:
        assert screen.exit_code() == 2
        assert "no prompt" in screen.screen


def test_ctrl_c_while_generating_leaves_with_130_and_no_traceback() -> None:
    with terminal("generate", "--model", "tiny", "--max-tokens", "2000", "prompt 3") as screen:
        screen.read_until(r"loading tiny\S*\s+\S")
        screen.interrupt()
        assert screen.exit_code() == 130
        assert "Traceback" not in screen.screen


def test_ctrl_c_stops_an_answer_only_and_the_next_turn_still_hits_the_cache() -> None:
    with terminal("chat", "--model", "tiny", "--max-tokens", "1500") as screen:
        screen.read_until("> ")
        screen.type("prompt 26 that fills some blocks\n")
        screen.read_until(r"blocks\s+\S")
        screen.interrupt()
        screen.read_until(r"\[stopped\]")
        screen.read_until("> ")
        screen.type("/stats\n")
        assert " 0 used" in screen.read_until("copies")
        screen.type("go on\n")
        match = CACHE_LINE.search(screen.read_until(r"prefill saved\)"))
        screen.type("/exit\n")
        assert screen.exit_code() == 0
        assert "Traceback" not in screen.screen
    assert match and int(match[1]) > 0


@pytest.mark.parametrize(("keys", "exit_code"), [("\x04", 0), ("", 130)], ids=["ctrl-d", "ctrl-c"])
def test_ctrl_d_and_ctrl_c_leave_at_the_prompt(keys: str, exit_code: int) -> None:
    with terminal("chat", "--model", "tiny") as screen:
        screen.read_until("> ")
        screen.type(keys) if keys else screen.interrupt()
        assert screen.exit_code() == exit_code
        assert "Traceback" not in screen.screen


def test_ctrl_c_in_the_demo_brings_the_cursor_back() -> None:
    with terminal("demo", "--model", "tiny", "--delay", "0.05") as screen:
        screen.read_until("step 3")
        screen.interrupt()
        assert screen.exit_code() == 130
        assert screen.screen.rfind("\x1b[?25h") > screen.screen.rfind("\x1b[?25l")
        assert "Traceback" not in screen.screen

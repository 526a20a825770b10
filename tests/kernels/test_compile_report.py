"""The compile report: what ships passes it, and each kind of fault is found in a kernel that has it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from minipaged.cli import main
from minipaged.kernels import compile_report as module
from minipaged.kernels import triton_status
from minipaged.kernels.compile_report import TARGETS, Compiled, compile_report

pytestmark = pytest.mark.skipif(not triton_status().installed, reason="no triton here: nothing that compiles")

LONG = os.environ.get("MINIPAGED_LONG") == "1"
FAULTY = Path(__file__).with_name("faulty_kernels.py")
WRONG = [i for i, line in enumerate(FAULTY.read_text().splitlines(), 1) if line.endswith("# wrong")]


@pytest.fixture(scope="module")
def faulty() -> dict[tuple[str, str], Compiled]:
    report = compile_report(["sm_80", "gfx942"], source=FAULTY)
    return {(compiled.name, compiled.target): compiled for compiled in report}


def test_every_shipped_kernel_compiles_without_spill_or_narrow_offset_for_every_target() -> None:
    report = list(compile_report(names=() if LONG else ["bf16 D128"]))
    assert {
        (compiled.name, compiled.target): compiled.problems for compiled in report if compiled.problems
    } == {}
    assert {compiled.target for compiled in report} == set(TARGETS)
    assert {"store_kv", "paged_decode", "paged_decode_split", "paged_prefill", "copy_blocks"} <= {
        compiled.name.split()[0] for compiled in report
    }


def test_a_kernel_that_does_not_compile_says_why_and_stops_no_other(faulty) -> None:
    for target in ("sm_80", "gfx942"):
        (problem,) = faulty["reads_a_global", target].problems
        assert problem.startswith("doesn't compile:") and "Cannot access global variable NUMBER" in problem


def test_registers_that_do_not_suffice_are_a_problem(faulty) -> None:
    for name, target in ("keeps_too_much", "sm_80"), ("shares_too_much", "gfx942"):
        compiled = faulty[name, target]
        assert compiled.registers >= 255
        assert compiled.problems == [f"spills {compiled.spilled} bytes of registers a thread"]


def test_more_shared_memory_than_the_device_has_is_a_problem(faulty) -> None:
    compiled = faulty["shares_too_much", "sm_80"]
    assert (
        compiled.shared >= 7 * 128 * 128 * 2 > 166_912
    )  # tiles of 128 · 128 fp16 values that are on their way
    assert compiled.problems == [f"needs {compiled.shared:,} bytes of shared memory of 166,912"]


def test_only_what_is_known_to_be_aligned_is_loaded_128_bits_at_once(faulty) -> None:
    # 1024 values of 32 bits, 128 or 256 threads: 8 or 4 a thread.
    assert faulty["copy", "sm_80"].loads == faulty["copy", "sm_80"].stores == {128: 2}
    assert faulty["copy", "gfx942"].loads == faulty["copy", "gfx942"].stores == {128: 1}
    assert faulty["copy_unaligned", "sm_80"].loads == {32: 8}
    assert faulty["copy_unaligned", "gfx942"].loads == {32: 4}


def test_every_32_bit_product_that_becomes_an_offset_is_found_by_its_line(faulty) -> None:
    for target in ("sm_80", "gfx942"):
        found = {name: compiled.narrow_offsets for (name, of), compiled in faulty.items() if of == target}
        assert {line for narrow in found.values() for line in narrow} == {
            f"{FAULTY}:{line}" for line in WRONG
        }
        assert all(len(found[name]) == 1 for name in found if name.startswith("offset_") and "64" not in name)
    (problem,) = faulty["offset_of_32_bits", "sm_80"].problems
    assert "32-bit product" in problem and str(WRONG[0]) in problem


def test_a_copy_of_a_kernel_is_named_by_its_own_lines(faulty, tmp_path: Path) -> None:
    copy = tmp_path / FAULTY.name
    copy.write_text(FAULTY.read_text())
    (compiled,) = compile_report(["sm_80"], names=["offset_of_32_bits"], source=copy)
    assert all(line.startswith(f"{copy}:") for line in compiled.narrow_offsets) and compiled.narrow_offsets


def test_kernels_that_are_right_have_no_problem(faulty) -> None:
    for name in ("copy", "copy_unaligned", "offset_of_64_bits", "table_entry_of_a_position"):
        assert faulty[name, "sm_80"].problems == faulty[name, "gfx942"].problems == []


def test_the_assembly_is_there_to_be_read(faulty) -> None:
    assert "ld.global.v4.b32" in faulty["copy", "sm_80"].assembly
    assert "_load_dwordx4" in faulty["copy", "gfx942"].assembly


@pytest.mark.parametrize(
    ("assembly", "kind", "widths"),
    [
        ("@%p1 ld.global.L1::evict_last.v4.b32 { %r1 };\n ld.global.nc.b16 %rs1;", "ld", {128: 1, 16: 1}),
        ("ld.global.v2.b64 {}; ld.param.b64 %rd; ld.shared.v4.b32 {}; st.global.b32 [];", "ld", {128: 1}),
        ("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;", "ld", {128: 1}),
        ("st.global.v4.f32 []; st.global.b8 []; ld.global.b32 %r1;", "st", {128: 1, 8: 1}),
        (
            "global_load_dwordx3 v[0:2]\n buffer_load_ushort v0\n s_load_dwordx2 s[0:1]",
            "load",
            {96: 1, 16: 1},
        ),
        (
            "global_load_short_d16_hi v0\n global_load_lds_dword v1\n scratch_load_dword",
            "load",
            {32: 1, 16: 1},
        ),
        ("global_store_dwordx4 v0\n buffer_store_byte v0\n global_load_dword v0", "store", {128: 1, 8: 1}),
    ],
)
def test_widths_are_counted_for_global_memory_only(assembly: str, kind: str, widths: dict[int, int]) -> None:
    assert module._widths(assembly, kind) == widths


def test_unknown_targets_and_names_and_broken_sources_are_errors_that_say_so(tmp_path) -> None:
    with pytest.raises(ValueError, match="'sm_12' is not known; use one of sm_80, sm_90, gfx942"):
        next(compile_report(["sm_12"]))
    source = tmp_path / "kernels.py"
    source.write_text("SHIPPED = []")
    with pytest.raises(ValueError, match=r"kernels\.py has no configuration named this or that"):
        list(compile_report(["sm_80"], names=["this", "that"], source=source))
    source.write_text("SHIPPED = 1 / 0")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        list(compile_report(["sm_80"], source=source))


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_prints_a_row_a_kernel_and_fails_when_one_has_a_problem(
    monkeypatch, as_json: bool
) -> None:
    good = Compiled("store_kv bf16 D128", "_store_kv_kernel", "sm_80", registers=32, loads={128: 2, 64: 1})
    bad = Compiled("decode", "_decode_kernel", "sm_90", spilled=8, narrow_offsets=["k.py:7"])
    broken = Compiled("prefill", "_prefill_kernel", "gfx942", error="at 2:22:\nno")
    for report, exit_code in ([good], 0), ([good, bad], 1), ([broken], 1):
        monkeypatch.setattr(
            "minipaged.cli.kernels.compile_report", lambda *_, report=report, **__: iter(report)
        )
        result = CliRunner().invoke(main, ["kernels", *["--json"] * as_json])
        assert result.exit_code == exit_code
        if as_json:
            rows = [json.loads(line) for line in result.stdout.splitlines()]
            assert [row["problems"] for row in rows] == [compiled.problems for compiled in report]
    if not as_json:
        assert "doesn't compile: at 2:22:" in result.stdout and "-" in result.stdout

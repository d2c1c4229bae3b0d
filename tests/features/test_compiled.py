"""Compiled features: counts worked out by hand on snippets, and the same on kernels that Triton really compiles."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autosched.errors import InvalidInputError
from autosched.features.compiled import COMPILED, Resources, compiled_features, cubin_resources, ptx_counts

PTX = """
\t// begin inline asm
\t@%p1 cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
\t// end inline asm
\tcp.async.cg.shared.global [ %r1 + 16 ], [ %rd1 + 16 ], 0x10, %r2;
\tcp.async.ca.shared.global [ %r1 + 0 ], [ %rd2 + 0 ], 0x8, %r2;
\tcp.async.ca.shared.global [ %r1 + 0 ], [ %rd3 + 0 ], 4, %r2;
\tcp.async.commit_group;
\tld.param.b64 \t%rd3, [gemm_param_2];
\t@%p22 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1, {%r7, %r7}], [%r3];
\t@%p24 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r6], [%rd1, {%r7, %r7}], [%r3];
\t@!%p3 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd8 + 0 ];
\tldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5];
\tldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r1, %r2, %r3, %r4}, [%r5];
\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f1};
\tbar.sync \t0;
\tbar.warp.sync \t-1;
\tmbarrier.init.shared::cta.b64 [%r3], 1;
\tst.shared.b32 [%r1], %r2;
\tst.global.v4.b32 [ %rd8 + 0 ], { %r1, %r2, %r3, %r4 };
\tst.global.b16 [ %rd8 + 0 ], { %rs1 };
\t@%p23 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd18, {%r40, %r40}], [%r6];
\tcp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%rd18, {%r40, %r40}], [%r6];
\tatom.global.gpu.acq_rel.add.u32 %r1, [ %rd1 + 0 ], 1;
\tred.global.add.f32 [ %rd1 + 0 ], %f1;
"""

LOOP = """
$L__BB0_1:                              // =>This Inner Loop Header: Depth=1
\twgmma.fence.sync.aligned;
\twgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{%r132,%r133}}, {a}, %rd36, %p1, 1, 1, 0, 1;
\twgmma.commit_group.sync.aligned;
\twgmma.wait_group.sync.aligned {inside};
\t@%p5 bra \t$L__BB0_1;
\twgmma.wait_group.sync.aligned {after};
"""


def test_counts_of_every_kind() -> None:
    assert ptx_counts(PTX) == {
        "wgmma": 0,
        "mma": 1,
        "cp_async_16": 2,
        "cp_async_8": 1,
        "cp_async_4": 1,
        "tma_loads": 2,
        "tma_stores": 2,
        "plain_loads": 1,
        "plain_stores": 2,
        "atomics": 2,
        "ldmatrix": 2,
        "barriers": 1,
        "register_a": 0,
        "wgmma_pending_in_loop": 0,
        "register_a_hazard": 0,
    }


@pytest.mark.parametrize(
    ("a", "inside", "after", "expected"),
    [
        ("{%r54,%r55,%r56,%r57}", 1, 0, (1, 1, 1)),
        ("{%r54,%r55,%r56,%r57}", 0, 0, (1, 0, 0)),
        ("{%r54,%r55,%r56,%r57}", 0, 1, (1, 0, 0)),  # pending after the loop harms nobody
        ("%rd35", 1, 0, (0, 1, 0)),
    ],
)
def test_register_a_hazard_needs_both_in_one_loop(
    a: str, inside: int, after: int, expected: tuple[int, int, int]
) -> None:
    counts = ptx_counts(LOOP.format(a=a, inside=inside, after=after))
    assert counts["wgmma"] == 1
    found = counts["register_a"], counts["wgmma_pending_in_loop"], counts["register_a_hazard"]
    assert found == expected


def test_forward_branch_is_no_loop() -> None:
    text = (
        "\t@%p1 bra \t$L__BB0_2;\n\twgmma.wait_group.sync.aligned 1;\n$L__BB0_2:\n\twgmma.wait_group.sync.aligned 2;\n"
    )
    assert ptx_counts(text)["wgmma_pending_in_loop"] == 0


def make_cubin(registers: list[int], stack: int, code: int) -> bytes:
    """An ELF file with a .nv.info section and a .text section, as far as they are read."""
    info = struct.pack("<BBH", 0x03, 0x50, 7)  # a half-word attribute, to be skipped
    info += b"".join(struct.pack("<BBHII", 0x04, 0x2F, 8, i, count) for i, count in enumerate(registers))
    info += struct.pack("<BBHIII", 0x04, 0x36, 12, 1, 2, 3)  # of another size, to be skipped
    info += struct.pack("<BBHII", 0x04, 0x11, 8, 1, stack)
    names = b"\0.shstrtab\0.nv.info\0.text.gemm\0"
    bodies = [b"", names, info, b"\x90" * code]
    starts = [0, 1, names.index(b".nv.info"), names.index(b".text")]
    body, headers = b"", b""
    for start, content in zip(starts, bodies, strict=True):
        headers += struct.pack("<IIQQQQIIQQ", start, 1, 0, 0, 64 + len(body), len(content), 0, 0, 1, 0)
        body += content
    head = b"\x7fELF\x02\x01".ljust(0x28, b"\0") + struct.pack("<QIHHHHHH", 64 + len(body), 0, 64, 0, 0, 64, 4, 1)
    return head + body + headers


def test_cubin_by_hand() -> None:
    assert cubin_resources(make_cubin([40, 168], 792, 4608)) == Resources(168, 792, 4608)


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not a cubin: it begins with b'hello '"):
        cubin_resources(b"hello world")
    with pytest.raises(InvalidInputError, match="states no register count"):
        cubin_resources(make_cubin([], 0, 16))


def test_kernels_of_a_schedule_are_summed_and_maximised() -> None:
    first: dict[str, str | bytes] = {
        "ptx": PTX,
        "ttgir": "ttg.warp_specialize(%0)",
        "cubin": make_cubin([168], 0, 4096),
    }
    second: dict[str, str | bytes] = {"ptx": PTX, "ttgir": "", "cubin": make_cubin([32], 16, 512)}
    features = compiled_features([first, second], [{"shared": 49152}, {"shared": 1024}])
    assert list(features) == [feature.name for feature in COMPILED]
    assert features["kernels"] == 2
    assert features["shared_bytes"] == 49152
    assert (features["registers"], features["spill_bytes"], features["code_bytes"]) == (168, 16, 4608)
    assert (features["cp_async_16"], features["tma_stores"]) == (4, 4)
    assert features["warp_specialized"] == 1
    assert all(isinstance(value, float) for value in features.values())


def test_names_are_unique_and_explained() -> None:
    assert len({feature.name for feature in COMPILED}) == len(COMPILED)
    assert all(feature.unit and feature.source for feature in COMPILED)


KERNELS = """
import triton
import triton.language as tl


@triton.jit
def gemm(a_ptr, b_ptr, c_ptr):
    m = tl.arange(0, {m})[:, None]
    n = tl.arange(0, {n})[None, :]
    k = tl.arange(0, 64)
    acc = tl.zeros(({m}, {n}), tl.float32)
    for k0 in range(0, {pitch}, 64):
        a = tl.load(a_ptr + m * {pitch} + (k0 + k)[None, :]){cast}
        b = tl.load(b_ptr + (k0 + k)[:, None] * {n} + n)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m * {n} + n, acc.to(tl.bfloat16))


@triton.jit
def boxes(a_desc, b_desc, c_desc):
    acc = tl.zeros((64, 64), tl.float32)
    for k0 in range(0, 1024, 64):
        acc = tl.dot(a_desc.load([0, k0]), b_desc.load([k0, 0]), acc)
    c_desc.store([0, 0], acc.to(tl.bfloat16))
"""
POINTERS = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*bf16")
BOXES = dict.fromkeys(("a_desc", "b_desc", "c_desc"), "tensordesc<bf16[64, 64]>")


def build(folder: Path, name: str, signature: Mapping[str, str], warps: int = 4, **form: Any) -> Any:
    """A kernel compiled for sm_90."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    path = folder / "kernels.py"
    path.write_text(KERNELS.format(**{"m": 64, "n": 64, "pitch": 1024, "cast": "", **form}))
    found = importlib.util.spec_from_file_location("kernels", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    aligned = [i for i, kind in enumerate(signature.values()) if kind.startswith("*")]
    source = triton.compiler.ASTSource(
        getattr(module, name), dict(signature), {}, {(i,): [["tt.divisibility", 16]] for i in aligned}
    )
    return triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": warps, "num_stages": 3})


def features_of(compiled: Any) -> dict[str, float]:
    return compiled_features([compiled.asm], [compiled.metadata._asdict()])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def test_pointer_kernel(folder: Path) -> None:
    features = features_of(build(folder, "gemm", POINTERS))
    assert (features["wgmma"], features["mma"], features["register_a"]) == (4, 0, 0)  # 64 / 16 steps of K
    assert features["cp_async_16"] == 24  # 2 operands, 64 * 64 * 2 B / (128 threads * 16 B), 3 stages
    assert (features["tma_loads"], features["plain_loads"]) == (0, 0)
    assert features["shared_bytes"] == 3 * 2 * 64 * 64 * 2


def test_unaligned_rows_lose_wide_copies(folder: Path) -> None:
    four = features_of(build(folder, "gemm", POINTERS, pitch=1002))
    assert four["cp_async_16"] > 0  # the operand whose rows are aligned
    assert four["cp_async_4"] > 0
    none = features_of(build(folder, "gemm", POINTERS, pitch=1001))
    assert (none["cp_async_8"], none["cp_async_4"]) == (0, 0)
    assert none["plain_loads"] > 0


def test_descriptor_kernel(folder: Path) -> None:
    features = features_of(build(folder, "boxes", BOXES))
    assert (features["tma_loads"], features["tma_stores"]) == (6, 1)  # 2 operands, 3 stages
    assert (features["cp_async_16"], features["plain_loads"], features["plain_stores"]) == (0, 0, 0)
    assert features["warp_specialized"] == 0


def test_arithmetic_before_the_dot_shows_the_hazard(folder: Path) -> None:
    features = features_of(build(folder, "gemm", POINTERS, cast=" * 2"))
    assert features["register_a"] == 4
    assert features["register_a_hazard"] == 1


def test_resources_agree_with_cuobjdump(folder: Path) -> None:
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton ships no cuobjdump")
    compiled = build(folder, "gemm", POINTERS, m=128, n=256)  # with 4 warps it spills
    cubin = folder / "k.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    said = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
    usage = dict(part.split(":") for part in said.split() if part.startswith(("REG:", "STACK:")))
    resources = cubin_resources(cubin.read_bytes())
    assert (resources.registers, resources.stack_bytes) == (int(usage["REG"]), int(usage["STACK"]))
    assert resources.stack_bytes > 0

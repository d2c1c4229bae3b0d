"""What a compiled kernel says about itself, read from its TTGIR, PTX and cubin; no GPU and no tool is needed.

The counts are of instructions in the text, not of executions: a loop body counts once.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from autosched.errors import InvalidInputError
from autosched.features.schema import Feature

COMPILED: Final[tuple[Feature, ...]] = (
    Feature("kernels", "1", "number of kernels of the schedule"),
    Feature("shared_bytes", "B", "largest metadata.shared, the shared memory of a CTA"),
    Feature("registers", "1", "largest EIATTR_REGCOUNT of the cubin, registers a thread"),
    Feature("spill_bytes", "B", "largest EIATTR_FRAME_SIZE of the cubin, stack a thread, which Triton uses for spills"),
    Feature("code_bytes", "B", "size of the cubin's .text sections"),
    Feature("wgmma", "1", "wgmma.mma_async in the PTX"),
    Feature("mma", "1", "mma.sync in the PTX"),
    Feature("cp_async_16", "1", "cp.async of 16 bytes in the PTX"),
    Feature("cp_async_8", "1", "cp.async of 8 bytes in the PTX"),
    Feature("cp_async_4", "1", "cp.async of 4 bytes in the PTX"),
    Feature("tma_loads", "1", "cp.async.bulk.tensor from global to shared memory in the PTX"),
    Feature("tma_stores", "1", "cp.async.bulk.tensor or cp.reduce.async.bulk.tensor to global memory in the PTX"),
    Feature("plain_loads", "1", "ld.global in the PTX"),
    Feature("plain_stores", "1", "st.global in the PTX"),
    Feature("atomics", "1", "atom and red in the PTX"),
    Feature("ldmatrix", "1", "ldmatrix in the PTX"),
    Feature("barriers", "1", "bar.sync and barrier instructions of a CTA in the PTX"),
    Feature("register_a", "1", "wgmma.mma_async whose A operand is a tuple of registers, in the PTX"),
    Feature("wgmma_pending_in_loop", "1", "wgmma.wait_group above 0 inside a loop of the PTX"),
    Feature("register_a_hazard", "0 or 1", "a loop of the PTX holds both a register A operand and a pending wait"),
    Feature("warp_specialized", "0 or 1", "ttg.warp_specialize in the TTGIR"),
)

_MAXIMA: Final = frozenset({"shared_bytes", "registers", "spill_bytes", "register_a_hazard", "warp_specialized"})

_OPCODE: Final = re.compile(r"^[ \t]*(?:@!?%\w+[ \t]+)?([a-z][a-z0-9_.:]*)", re.MULTILINE)
_CP_ASYNC: Final = re.compile(r"\bcp\.async\.c[ag]\.shared\S*\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(0x[0-9a-fA-F]+|\d+)")
_REGISTER_A: Final = re.compile(r"\bwgmma\.mma_async\.\S+\s+\{[^}]*\},\s*\{")
_WAIT: Final = re.compile(r"\bwgmma\.wait_group\.sync\.aligned\s+(\d+)")
_LABEL: Final = re.compile(r"^[ \t]*(\$[\w$]+):", re.MULTILINE)
_BRANCH: Final = re.compile(r"\bbra(?:\.uni)?\s+(\$[\w$]+)")

_ELF_MAGIC: Final = b"\x7fELF\x02\x01"
_VALUE_FORMAT: Final = 0x04
_FRAME_SIZE: Final = 0x11
_REGISTER_COUNT: Final = 0x2F
_PAIR_BYTES: Final = 8


class Resources(NamedTuple):
    """What ptxas gave a kernel.

    Attributes:
        registers: Registers a thread, the most of any function.
        stack_bytes: Stack a thread, the most of any function.
        code_bytes: Machine code of all functions.
    """

    registers: int
    stack_bytes: int
    code_bytes: int


def compiled_features(
    asm: Sequence[Mapping[str, str | bytes]], metadata: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Features of the compiled kernels of one schedule.

    Args:
        asm: For each kernel the texts ``ttgir`` and ``ptx`` and the bytes ``cubin``.
        metadata: For each kernel Triton's metadata, of which ``shared`` is read (bytes).

    Returns:
        A value for every name in :data:`COMPILED`: sums over the kernels, except that sizes a CTA or a thread and flags
        are the largest of any kernel.

    Raises:
        InvalidInputError: A cubin that is none.
    """
    total = dict.fromkeys((feature.name for feature in COMPILED), 0.0)
    for texts, values in zip(asm, metadata, strict=True):
        for name, value in _kernel_features(texts, values).items():
            total[name] = max(total[name], value) if name in _MAXIMA else total[name] + value
    return total


def _kernel_features(texts: Mapping[str, str | bytes], metadata: Mapping[str, Any]) -> dict[str, float]:
    """The features of one kernel."""
    resources = cubin_resources(_bytes(texts["cubin"]))
    values = {
        "kernels": 1,
        "shared_bytes": int(metadata["shared"]),
        "registers": resources.registers,
        "spill_bytes": resources.stack_bytes,
        "code_bytes": resources.code_bytes,
        "warp_specialized": int("ttg.warp_specialize" in _text(texts["ttgir"])),
        **ptx_counts(_text(texts["ptx"])),
    }
    return {name: float(value) for name, value in values.items()}


def ptx_counts(ptx: str) -> dict[str, int]:
    """Counts of the instructions that :data:`COMPILED` names, and the hazard flag, in one kernel's PTX."""
    opcodes = Counter(_OPCODE.findall(ptx))

    def count(*prefixes: str) -> int:
        return sum(n for opcode, n in opcodes.items() if opcode.startswith(prefixes))

    widths = Counter(int(width, 0) for width in _CP_ASYNC.findall(ptx))
    loops = list(_loops(ptx))
    register_a = [match.start() for match in _REGISTER_A.finditer(ptx)]
    pending = [match.start() for match in _WAIT.finditer(ptx) if int(match[1]) > 0]
    hazard = any(_any_within(register_a, loop) and _any_within(pending, loop) for loop in loops)
    return {
        "wgmma": count("wgmma.mma_async."),
        "mma": count("mma.sync."),
        "cp_async_16": widths[16],
        "cp_async_8": widths[8],
        "cp_async_4": widths[4],
        "tma_loads": sum(n for opcode, n in opcodes.items() if _is_tma_load(opcode)),
        "tma_stores": sum(n for opcode, n in opcodes.items() if _is_tma_store(opcode)),
        "plain_loads": count("ld.global", "ld.relaxed", "ld.acquire", "ld.volatile.global"),
        "plain_stores": count("st.global", "st.relaxed", "st.release", "st.volatile.global"),
        "atomics": count("atom.", "red."),
        "ldmatrix": count("ldmatrix."),
        "barriers": count("bar.sync", "bar.red", "bar.arrive", "barrier."),
        "register_a": len(register_a),
        "wgmma_pending_in_loop": sum(any(low <= at < high for low, high in loops) for at in pending),
        "register_a_hazard": int(hazard),
    }


def cubin_resources(cubin: bytes) -> Resources:
    """Registers, stack and size of the code, from the ELF sections ``.nv.info`` and ``.text.*`` of a cubin.

    An attribute of ``.nv.info`` is a format byte, an attribute byte and a 16-bit size or value; those read here hold a
    symbol's index and a 32-bit number.

    Raises:
        InvalidInputError: Not a 64-bit ELF file, or one without a register count.
    """
    if not cubin.startswith(_ELF_MAGIC):
        raise InvalidInputError(f"not a cubin: it begins with {cubin[:6]!r}", "pass the bytes of asm['cubin']")
    registers, stack, code = [], [0], 0
    for name, body in _sections(cubin):
        if name.startswith(".text"):
            code += len(body)
        elif name == ".nv.info":
            for attribute, value in _attributes(body):
                if attribute == _REGISTER_COUNT:
                    registers.append(value)
                elif attribute == _FRAME_SIZE:
                    stack.append(value)
    if not registers:
        raise InvalidInputError("the cubin states no register count", "compile it with a ptxas that Triton ships")
    return Resources(max(registers), max(stack), code)


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each section of a 64-bit little-endian ELF file."""
    (offset,) = struct.unpack_from("<Q", elf, 0x28)
    size, number, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(number)]
    names = headers[names_at][4]
    for name, _, _, _, start, length in headers:
        first = names + name
        yield elf[first : elf.index(b"\0", first)].decode(), elf[start : start + length]


def _attributes(info: bytes) -> Iterator[tuple[int, int]]:
    """Attribute and number of each entry of a ``.nv.info`` section that holds a symbol's index and a number."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != _VALUE_FORMAT:
            continue
        if size == _PAIR_BYTES:
            yield attribute, struct.unpack_from("<II", info, at)[1]
        at += size


def _loops(ptx: str) -> Iterator[tuple[int, int]]:
    """Begin and end, in characters, of each stretch from a label to a later branch back to it."""
    labels = {match[1]: match.start() for match in _LABEL.finditer(ptx)}
    for match in _BRANCH.finditer(ptx):
        start = labels.get(match[1])
        if start is not None and start < match.start():
            yield start, match.end()


def _any_within(positions: Sequence[int], span: tuple[int, int]) -> bool:
    return any(span[0] <= at < span[1] for at in positions)


def _is_tma_load(opcode: str) -> bool:
    into_shared = (".shared::cluster.global", ".shared::cta.global")  # Triton 3.6 writes the first, 3.9 the second
    return opcode.startswith("cp.async.bulk.tensor") and any(form in opcode for form in into_shared)


def _is_tma_store(opcode: str) -> bool:
    return opcode.startswith(("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")) and ".global.shared" in opcode


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()

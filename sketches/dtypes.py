"""The element types that ops are written in, and the names that other libraries give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autosched.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes:
        name: autosched's name.
        bytes: Size of one element as it is stored.
        triton: Name in a Triton signature (``fp16`` in ``*fp16``).
        tl: Attribute of ``triton.language``.
        torch: Attribute of ``torch``.
        mantissa: Explicit mantissa bits that survive the multiplication (tf32 stores 23 and multiplies 10).
        input_precision: ``input_precision`` of ``tl.dot`` for fp32 storage, else empty.
        accumulator: Name of the type that products of it are summed in.
        product: Whether products are made of it; the others are types of outputs and epilogue operands alone.
    """

    name: str
    bytes: int
    triton: str
    tl: str
    torch: str
    mantissa: int
    input_precision: str = ""
    accumulator: str = "fp32"
    product: bool = True

    @property
    def is_float8(self) -> bool:
        """Whether it is one of the 8-bit floats."""
        return self.bytes == 1 and self.accumulator == "fp32"


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("bf16", 2, "bf16", "bfloat16", "bfloat16", 7),
        DType("fp16", 2, "fp16", "float16", "float16", 10),
        DType("fp32", 4, "fp32", "float32", "float32", 23, "ieee"),
        DType("tf32", 4, "fp32", "float32", "float32", 10, "tf32"),
        DType("fp8e4m3", 1, "fp8e4nv", "float8e4nv", "float8_e4m3fn", 3),
        DType("fp8e5m2", 1, "fp8e5", "float8e5", "float8_e5m2", 2),
        DType("int8", 1, "i8", "int8", "int8", 7, accumulator="int32"),
        DType("int32", 4, "i32", "int32", "int32", 31, product=False),
    )
}

_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float8_e4m3fn": "fp8e4m3",
    "float8_e5m2": "fp8e5m2",
}


def parse_dtype(value: Any) -> DType:
    """The :class:`DType` that a name, a ``torch.dtype``, a numpy dtype or a ``DType`` means.

    Raises:
        InvalidInputError: The name is unknown.
    """
    if isinstance(value, DType):
        return value
    name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
    name = str(name).removeprefix("torch.")
    dtype = DTYPES.get(_ALIASES.get(name, name))
    if dtype is None:
        raise InvalidInputError(f"unknown dtype {value!r}", f"one of {', '.join(DTYPES)}, or a torch or numpy dtype")
    return dtype

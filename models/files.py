"""The file of a model: one JSON object with schema, digest of the training data and a checksum of its contents.

No pickle: boosters are stored as XGBoost's own UBJ, compressed and in base64; everything else is plain JSON.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import msgspec

from autosched.errors import ModelMismatchError
from autosched.features import SCHEMA

FORMAT = 1
_REMEDY = "train it again with this version: autosched train LOG... -o MODEL"


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's file holds.

    Attributes:
        format: Version of this layout.
        recipe: Name of the model in ``RECIPES``.
        schema: ``features.SCHEMA`` that it was trained with.
        digest: Digest of the training data.
        spaces: Iteration spaces that it was trained on.
        seed: Seed of its randomness.
        state: Numbers of the model, JSON-able.
        boosters: XGBoost models by name, zlib-compressed UBJ.
        checksum: SHA-256 of everything else.
    """

    recipe: str
    schema: str
    digest: str
    spaces: tuple[str, ...]
    seed: int
    state: dict[str, Any] = {}
    boosters: dict[str, bytes] = {}
    format: int = FORMAT
    checksum: str = ""


def pack(booster: bytes) -> bytes:
    """A booster's UBJ as a file holds it."""
    return zlib.compress(booster, 6)


def unpack(data: bytes) -> bytearray:
    """The UBJ again.

    Raises:
        ModelMismatchError: It is damaged.
    """
    try:
        return bytearray(zlib.decompress(data))
    except zlib.error as error:
        raise ModelMismatchError(f"a booster in the model file is damaged: {error}", _REMEDY) from error


def write(path: str | Path, content: ModelFile) -> None:
    """Write ``content`` to ``path`` in one step; a reader sees the old file or the new one."""
    path = Path(path)
    sealed = msgspec.structs.replace(content, checksum=_checksum(content))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(sealed))
        # mkstemp gives 0600; a model is meant to be shared like any other file.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(path: str | Path, recipe: str | None = None) -> ModelFile:
    """The checked contents of a model's file.

    Args:
        path: The file.
        recipe: Name that it must have, if given.

    Raises:
        ModelMismatchError: The file is missing, truncated, altered, or of another format, recipe or schema.
    """
    try:
        content = msgspec.json.decode(Path(path).read_bytes(), type=ModelFile)
    except OSError as error:
        raise ModelMismatchError(f"cannot read model {path}: {error.strerror}", "name a model file") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelMismatchError(f"{path} is no model file or is truncated: {error}", _REMEDY) from error
    if content.format != FORMAT:
        raise ModelMismatchError(f"{path} has format {content.format}, this version reads {FORMAT}", _REMEDY)
    if content.checksum != _checksum(content):
        raise ModelMismatchError(f"{path} does not match its checksum", _REMEDY)
    if content.schema != SCHEMA:
        raise ModelMismatchError(f"{path} has feature schema {content.schema}, this version has {SCHEMA}", _REMEDY)
    if recipe is not None and content.recipe != recipe:
        raise ModelMismatchError(f"{path} is a model of recipe {content.recipe!r}, not {recipe!r}", "load it as such")
    return content


def _checksum(content: ModelFile) -> str:
    plain = msgspec.structs.replace(content, checksum="")
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()

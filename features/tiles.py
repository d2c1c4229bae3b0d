"""Features of the tiling: the knobs, how many tiles they make, and how much of the last ones is used."""

from __future__ import annotations

import numpy as np

from autosched.features.columns import Column, Columns
from autosched.features.schema import Feature

#: Features whose binary logarithm is stored.
LOG = (
    Feature("log2_block_m", "log2 elements", "knob block_m"),
    Feature("log2_block_n", "log2 elements", "knob block_n"),
    Feature("log2_block_k", "log2 elements", "knob block_k"),
    Feature("log2_warps", "log2 warps", "knob warps"),
    Feature("log2_group_m", "log2 tiles", "knob group_m, at most the tiles along M"),
    Feature("log2_split_k", "log2 parts", "knob split_k"),
    Feature("log2_subtile", "log2 pieces", "knob subtile"),
    Feature("log2_tile_aspect", "log2 1", "block_m / block_n"),
    Feature("log2_tiles_m", "log2 tiles", "ceil(M / block_m)"),
    Feature("log2_tiles_n", "log2 tiles", "ceil(N / block_n); of image boxes those along each axis, multiplied"),
    Feature("log2_k_steps", "log2 steps", "steps of one part: ceil(ceil(K / block_k) / split_k)"),
    Feature("log2_unroll", "log2 steps", "knob unroll"),
    Feature("log2_box_h", "log2 elements", "knob box_h"),
    Feature("log2_box_w", "log2 elements", "knob box_w"),
    Feature("log2_padded_flops", "log2 1", "computed flops / flops of the op"),
)
LINEAR = (
    Feature("stages", "stages", "knob stages"),
    Feature("flatten", "1", "knob flatten"),
    Feature("specialize", "1", "knob specialize"),
    Feature("dependent", "1", "knob dependent"),
    Feature("maxnreg", "1", "knob maxnreg / 256"),
    Feature("evict", "1", "knob evict"),
    Feature("cache", "1", "knob cache"),
    Feature("pieced", "1", "block_n is no power of two"),
    Feature("used_m", "1", "M / (tiles_m * block_m)"),
    Feature("used_n", "1", "N / (tiles_n * block_n)"),
    Feature("used_k", "1", "K / (k_steps * split_k * block_k)"),
)


def compute(c: Columns) -> tuple[Column, ...]:
    """The columns of ``LOG`` (before the logarithm) and ``LINEAR``, in their order."""
    used_m = c.m / (c.tiles_m * c.block_m)
    used_n = c.n / (c.tiles_n * c.block_n)
    used_k = c.k / c.k_padded
    return (
        c.block_m,
        c.block_n,
        c.block_k,
        c.warps,
        np.minimum(c.group_m, c.tiles_m),
        c.split_k,
        c.subtile,
        c.block_m / c.block_n,
        c.tiles_m,
        c.tiles_n,
        c.k_steps,
        c.unroll,
        c.box_h,
        c.box_w,
        np.float32(1) / (used_m * used_n * used_k),
        c.stages,
        c.flatten,
        c.specialize,
        c.dependent,
        c.maxnreg * np.float32(1 / 256),
        c.evict,
        c.cache,
        _pieced(c.block_n),
        used_m,
        used_n,
        used_k,
    )


def _pieced(width: Column) -> Column:
    """1 where a width is no power of two."""
    whole = width.astype(np.int32)
    pieced: Column = ((whole & (whole - 1)) != 0).astype(np.float32)
    return pieced

"""A sketch: a tree of typed nodes that says how an op is computed, with every number left open."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from autosched.sketches.box import box_map
from autosched.sketches.knobs import KNOB_NAMES, Knob
from autosched.sketches.nodes import ChainEpilogue, Combine, Finish, Launch, Load, Work
from autosched.sketches.op import Op
from autosched.sketches.view import MatrixView


@dataclass(frozen=True, slots=True)
class Step:
    """One application of a rule: its name and what it did here."""

    rule: str
    what: str


@dataclass(frozen=True)
class Sketch:
    """The tree, and how it was derived. Two sketches with the same nodes are equal, however they came about."""

    view: MatrixView
    work: Work
    loads: tuple[Load, ...]
    combine: Combine
    epilogue: ChainEpilogue
    finish: Finish
    launch: Launch
    derivation: tuple[Step, ...] = field(default=(), compare=False)
    knobs: tuple[Knob, ...] = field(default=(), compare=False)
    op_facts: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @cached_property
    def name(self) -> str:
        """Unique among an op's sketches: ``persistent.tma-tma.subtiled-tma``, ``swap.split.ptr-ptr.sum.atomic``."""
        store = getattr(self.finish, "store", None)
        finish = self.finish.tag + (f"-{store.tag}" if store else "")
        parts = [self.work.tag, "-".join(load.tag for load in self.loads), finish]
        if self.combine.summed:
            parts.insert(2, "run" if self.view.in_runs else self.combine.tag)
        if self.view.swapped:
            parts.insert(0, "swap")
        if self.view.prepared:
            parts.insert(0, self.view.prepared.tag)
        return ".".join(parts)

    def facts(self) -> dict[str, int]:
        """Structure, layout and alignment as numbers, the same keys for every sketch."""
        first, last = self.loads[0], self.loads[-1]
        return {
            **self.work.facts(),
            "tma_a": first.tma,
            "tma_b": last.tma,
            "copied_a": int(first.copied or first.operand in self.view.copies),
            "copied_b": int(last.copied or last.operand in self.view.copies),
            "summed": self.combine.summed,
            "swapped": int(self.view.swapped),
            "channelwise": int(self.view.channelwise),
            "turned_store": int(getattr(getattr(self.finish, "store", None), "transposed", False)),
            **self.finish.facts(),
            **dict(self.op_facts),
        }

    def completed(self, op: Op, derivation: tuple[Step, ...]) -> Sketch:
        """This tree with its knobs, facts and derivation filled in for ``op``, or what it is a view of."""
        op = self.view.over(op)
        nodes = (self.combine, self.work, *self.loads, self.finish)
        knobs = {k.name: k for node in nodes for k in node.knobs(op, self.view)}
        if self.view.copies:
            knobs["dependent"] = Knob("dependent", (0, 1))
        left, right = (op.operand(side(op.products[0])) for side in (self.view.left, self.view.right))
        copied = {load.operand for load in self.loads if load.copied}  # a copy is aligned, its reduction innermost
        k_inner = {t.name: t.name in copied or _walks(self.view, t.name, "k") for t in (left, right)}
        facts = {
            "trans_a": int(_walks(self.view, left.name, "m") and not k_inner[left.name]),
            "trans_b": int(k_inner[right.name] and (right.name in copied or not _walks(self.view, right.name, "n"))),
            "align_a": 16 if left.name in copied else self.view.row_alignment(left),
            "align_b": 16 if right.name in copied else self.view.row_alignment(right),
            "align_out": self.view.row_alignment(op.output),
            "batch": self.view.extent("batch"),
            "folded_k": int(any(_folds(op, self.view, load) for load in self.loads)),
            **_image_facts(op, self.loads),
        }
        return Sketch(
            self.view,
            self.work,
            self.loads,
            self.combine,
            self.epilogue,
            self.finish,
            self.launch,
            derivation,
            tuple(knobs[name] for name in KNOB_NAMES if name in knobs),
            tuple(facts.items()),
        )

    def explain(self) -> str:
        """The derivation and the knobs, as text for a terminal."""
        lines = [f"sketch {self.name}"]
        lines += [f"  {i}. {step.rule}: {step.what}" for i, step in enumerate(self.derivation, 1)]
        lines.append("  knobs:")
        lines += [f"    {knob.name:8s} {', '.join(map(str, knob.values))}" for knob in self.knobs]
        return "\n".join(lines)


def _image_facts(op: Op, loads: tuple[Load, ...]) -> dict[str, int]:
    """Extents of the image that boxes are taken from, all 0 without any; ``image_outer`` are axes of boxes of 1."""
    sizes = next(([op.extents[name] for name in load.boxed] for load in loads if load.boxed), None)
    if sizes is None:
        return {"image_outer": 0, "image_n": 0, "image_h": 0, "image_w": 0}
    *rest, width = sizes
    height = rest.pop() if len(rest) > 1 else 1
    return {"image_outer": prod(rest[:-1]), "image_n": rest[-1], "image_h": height, "image_w": width}


def _folds(op: Op, view: MatrixView, load: Load) -> bool:
    """Whether boxes of an operand that overhang the reduction read the next matrix of the batch."""
    box = box_map(view, op.operand(load.operand), load.rows, load.columns) if load.tma and not load.copied else None
    return box is not None and box.folded and (load.columns if box.transposed else load.rows) == "k"


def _walks(view: MatrixView, tensor: str, group: str) -> bool:
    """Whether neighbours along ``group`` lie next to each other in ``tensor``."""
    axes = view.group(group)
    return bool(axes) and axes[-1].stride(tensor) == 1

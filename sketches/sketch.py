"""A sketch: a tree of typed nodes that says how an op is computed, with every number left open."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from autosched.sketches.knobs import KNOB_NAMES, Knob
from autosched.sketches.nodes import ChainEpilogue, DotCombine, Finish, Launch, Load, Work
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
    combine: DotCombine
    epilogue: ChainEpilogue
    finish: Finish
    launch: Launch
    derivation: tuple[Step, ...] = field(default=(), compare=False)
    knobs: tuple[Knob, ...] = field(default=(), compare=False)
    op_facts: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @cached_property
    def name(self) -> str:
        """Unique among an op's sketches: ``persistent.tma-tma.subtiled-tma``."""
        store = getattr(self.finish, "store", None)
        finish = self.finish.tag + (f"-{store.tag}" if store else "")
        return ".".join((self.work.tag, "-".join(load.tag for load in self.loads), finish))

    def facts(self) -> dict[str, int]:
        """Structure, layout and alignment as numbers, the same keys for every sketch."""
        loads = {f"tma_{side}": load.tma for side, load in zip("ab", self.loads, strict=False)}
        return {**self.work.facts(), **loads, **self.finish.facts(), **dict(self.op_facts)}

    def completed(self, op: Op, derivation: tuple[Step, ...]) -> Sketch:
        """This tree with its knobs, facts and derivation filled in for ``op``."""
        nodes = (self.combine, self.work, self.finish)
        knobs = {k.name: k for node in nodes for k in node.knobs(op, self.view)}
        left, right = op.operand(op.products[0].left), op.operand(op.products[0].right)
        facts = {
            "trans_a": int(_walks(self.view, left.name, "m") and not _walks(self.view, left.name, "k")),
            "trans_b": int(_walks(self.view, right.name, "k") and not _walks(self.view, right.name, "n")),
            "align_a": self.view.row_alignment(left),
            "align_b": self.view.row_alignment(right),
            "align_out": self.view.row_alignment(op.output),
            "batch": self.view.extent("batch"),
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


def _walks(view: MatrixView, tensor: str, group: str) -> bool:
    """Whether neighbours along ``group`` lie next to each other in ``tensor``."""
    axes = view.group(group)
    return bool(axes) and axes[-1].stride(tensor) == 1

"""Search: spaces of schedules, and strategies that choose what to measure in them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autosched.errors import InvalidInputError
from autosched.search.annealing import Annealing
from autosched.search.evolutionary import Evolutionary
from autosched.search.exhaustive import Exhaustive
from autosched.search.grid import Grid
from autosched.search.random_search import RandomSearch
from autosched.search.space import GeneratedSpace, Space, TableSpace
from autosched.search.strategy import Score, Strategy, check_count, draw_distinct
from autosched.search.tpe import TPE

#: Strategies by name; each is made for one space, and its ``asks_model`` says whether it looks at scores.
STRATEGIES: Mapping[str, type[Strategy]] = MappingProxyType(
    {
        "annealing": Annealing,
        "evolutionary": Evolutionary,
        "random": RandomSearch,
        "grid": Grid,
        "exhaustive": Exhaustive,
        "tpe": TPE,
    }
)


def check_strategy(name: str) -> None:
    """Refuse a strategy that there is not.

    Raises:
        InvalidInputError: No strategy has that name.
    """
    if name not in STRATEGIES:
        raise InvalidInputError(f"unknown strategy {name!r}", f"one of {', '.join(STRATEGIES)}")


__all__ = [
    "STRATEGIES",
    "TPE",
    "Annealing",
    "Evolutionary",
    "Exhaustive",
    "GeneratedSpace",
    "Grid",
    "RandomSearch",
    "Score",
    "Space",
    "Strategy",
    "TableSpace",
    "check_count",
    "check_strategy",
    "draw_distinct",
]

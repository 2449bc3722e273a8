"""Measuring in turns: each pair of competitors runs alternately, in small batches, with the collector off.

The median of the ratios of neighbouring batches is what is reported: a machine that changes its speed changes it for
both. The spread is the range between the quartiles.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

#: Calls in a batch and batches of each competitor.
BATCH = 1_000
ROUNDS = 61


class Ratio(NamedTuple):
    """How much longer ``ours`` takes than ``theirs``; times are microseconds per call of the median batch."""

    median: float
    low: float
    high: float
    theirs: float
    ours: float


def in_turns(
    theirs: Callable[[Any], Any],
    ours: Callable[[Any], Any],
    argument: Callable[[int], Any],
    *,
    batch: int = BATCH,
    rounds: int = ROUNDS,
    between: Callable[[], None] | None = None,
) -> Ratio:
    """Time two functions of one argument against each other; ``between`` runs untimed before each batch of ours."""
    number = 0
    ratios, first, second = [], [], []
    for turn in range(rounds):
        pair = {}
        for name, function in (
            (("theirs", theirs), ("ours", ours)) if turn % 2 else (("ours", ours), ("theirs", theirs))
        ):
            arguments = [argument(number + i) for i in range(batch)]
            number += batch
            if between is not None:
                between()
            pair[name] = _timed(function, arguments) / batch / 1_000
        first.append(pair["theirs"])
        second.append(pair["ours"])
        ratios.append(pair["ours"] / pair["theirs"])
    quartiles = statistics.quantiles(ratios, n=4)
    return Ratio(
        statistics.median(ratios), quartiles[0], quartiles[2], statistics.median(first), statistics.median(second)
    )


def _timed(function: Callable[[Any], Any], arguments: list[Any]) -> int:
    gc.collect()
    gc.disable()
    try:
        start = perf_counter_ns()
        for argument in arguments:
            function(argument)
        return perf_counter_ns() - start
    finally:
        gc.enable()


def awaited(function: Callable[[Any], Any]) -> Callable[[list[Any]], int]:
    """A timer for a coroutine function: one event loop, the calls one after the other."""

    async def run(arguments: list[Any]) -> int:
        gc.collect()
        gc.disable()
        try:
            start = perf_counter_ns()
            for argument in arguments:
                await function(argument)
            return perf_counter_ns() - start
        finally:
            gc.enable()

    return lambda arguments: asyncio.run(run(arguments))


def in_turns_async(
    theirs: Callable[[Any], Any], ours: Callable[[Any], Any], argument: Callable[[int], Any], rounds: int = ROUNDS
) -> Ratio:
    """The same for coroutine functions."""
    number = 0
    ratios, first, second = [], [], []
    timers = {"theirs": awaited(theirs), "ours": awaited(ours)}
    for turn in range(rounds):
        pair = {}
        for name in ("theirs", "ours") if turn % 2 else ("ours", "theirs"):
            arguments = [argument(number + i) for i in range(BATCH)]
            number += BATCH
            pair[name] = timers[name](arguments) / BATCH / 1_000
        first.append(pair["theirs"])
        second.append(pair["ours"])
        ratios.append(pair["ours"] / pair["theirs"])
    quartiles = statistics.quantiles(ratios, n=4)
    return Ratio(
        statistics.median(ratios), quartiles[0], quartiles[2], statistics.median(first), statistics.median(second)
    )

"""Several tool calls of one reply, run side by side with asyncio.

Shows `@guarded_tool` on coroutine functions, `run.round()`, and what happens to fifty equal calls at once.
It needs no key and no network and ends by itself:

    python examples/parallel_tools.py
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from loopguard import Run, ToolCallRefused, guarded_run, guarded_tool

executed: Counter[str] = Counter()


@guarded_tool(kind="read")
async def fetch(url: str) -> str:
    """Fetch a page; the wait stands for the network."""
    executed[url] += 1
    await asyncio.sleep(0.01)
    return f"page of {url}"


async def call(url: str) -> str:
    """One call of a reply: its result, or in place of it what the guard tells the model."""
    try:
        return await fetch(url)
    except ToolCallRefused as refused:
        return refused.for_model()


async def reply(run: Run, *urls: str) -> list[str]:
    """All calls of one reply of the model, and what it reads then: results, refusals, nudges.

    The calls are one decision, for none could know how another ended.
    """
    run.round()
    results = await asyncio.gather(*(call(url) for url in urls))
    return [*results, *(nudge.text for nudge in run.pop_nudges())]


async def main() -> None:
    """Three replies: different calls, fifty equal ones, and different ones again."""
    async with guarded_run("parallel") as run:
        pages = await reply(run, "a", "b", "c")
        print(f"three pages at once: {len(pages)} results, {run.stats.refused} refused")

        answers = await reply(run, *["same"] * 50)
        refused = sum(answer.startswith("Not executed") for answer in answers)
        told = [answer for answer in answers if answer.startswith("Note")]
        print(f"fifty equal calls at once: {executed['same']} executed, {refused} refused, nudges: {len(told)}")

        await reply(run, "d", "e")
        print(f"the run goes on: {executed['d'] + executed['e']} more pages, stopped: {run.stopped}")

    actions: list[Any] = [finding.action.value for finding in run.findings]
    print(f"findings: {actions}")


if __name__ == "__main__":
    asyncio.run(main())

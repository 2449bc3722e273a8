"""A hand-written agent loop: one place where all tools are called, refusals and nudges go back to the model.

Shows `run.call`, `for_model()`, `pop_nudges()`, limits and the end of a run.
A script stands for the model, so it needs no key and no network and ends by itself:

    python examples/agent_loop.py

The model looks for a file that is not there. When it is refused it changes its mind; a second one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from loopguard import Limits, RunStopped, ToolCallRefused, guarded_run

Message = dict[str, Any]
Model = Callable[[list[Message]], Message]

FILES = {"src/config.py": "DEBUG = False"}


# The tools are plain functions: the loop below guards them by name.
def read(path: str) -> str:
    """Read a file."""
    return FILES.get(path, f"No such file: {path}")


def listing() -> list[str]:
    """List all files."""
    return sorted(FILES)


TOOLS: dict[str, Callable[..., Any]] = {"read": read, "listing": listing}


def run_agent(model: Model, task: str) -> str:
    """The loop. It ends with the model's answer, or with what the guard says about the run."""
    messages: list[Message] = [{"role": "user", "content": task}]
    answer = ""
    try:
        with guarded_run("agent-loop", limits=Limits(calls=50)) as run:
            while not answer:
                reply = model(messages)
                messages.append(reply)
                if "call" in reply:
                    messages.append(call_tool(run, reply["call"]))
                    # A nudge states what was seen; the model reads it beside the result.
                    messages += [{"role": "user", "content": nudge.text} for nudge in run.pop_nudges()]
                else:
                    answer = str(reply["content"])
    except RunStopped as stopped:
        answer = f"(ended) {stopped}"
    print(f"  {run.stats.calls} calls executed, {run.stats.refused} refused, {len(run.findings)} findings")
    return answer


def call_tool(run: Any, asked: dict[str, Any]) -> Message:
    """One call of any tool. A refused one is not executed; the model gets the reason as the result."""
    name, args = asked["name"], asked["args"]
    try:
        with run.call(name, args, id=asked["id"]) as call:
            call.result = TOOLS[name](**args)
        content = str(call.result)
    except ToolCallRefused as refused:
        content = refused.for_model()
    print(f"  {asked['id']}  {name}({', '.join(map(repr, args.values()))})  ->  {content[:60]}")
    return {"role": "tool", "id": asked["id"], "content": content}


# -- models with a script ------------------------------------------------------------------------------------------


def numbers() -> Iterator[str]:
    """Ids for calls, as an API gives them."""
    number = 0
    while True:
        number += 1
        yield f"call_{number}"


def model_that_listens() -> Model:
    """Asks for the wrong path until it is told that this will not be run again, then lists the files."""
    ids = numbers()

    def model(messages: list[Message]) -> Message:
        last = str(messages[-1]["content"])
        if last.startswith("Not executed"):
            return {"role": "assistant", "call": {"id": next(ids), "name": "listing", "args": {}}}
        if "src/config.py" in last:
            path = "src/config.py"
        elif last.startswith("DEBUG"):
            return {"role": "assistant", "content": "DEBUG is off; the file is src/config.py."}
        else:
            path = "config.py"
        return {"role": "assistant", "call": {"id": next(ids), "name": "read", "args": {"path": path}}}

    return model


def model_that_does_not() -> Model:
    """Asks for the wrong path, whatever it is told."""
    ids = numbers()
    return lambda messages: {
        "role": "assistant",
        "call": {"id": next(ids), "name": "read", "args": {"path": "config.py"}},
    }


if __name__ == "__main__":
    for title, scripted in (("it listens", model_that_listens()), ("it does not", model_that_does_not())):
        print(f"{title}:")
        print(f"  answer: {run_agent(scripted, 'Is DEBUG on?')}\n")

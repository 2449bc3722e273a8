"""All sentences that people and models read, in one place. Pure: facts in, text out.

Three readers: ``str()`` of an error is safe to show anybody; the model gets the target and what came back; the
developer gets the rule, its numbers and the way out.
"""

from __future__ import annotations

from loopguard.records import Action, Finding, Hit, Most
from loopguard.rules import RULES
from loopguard.rules.base import NO_CHANGE, Words

#: Characters of an outcome that a model is shown.
EXCERPT = 200
#: What is said of a call that was started and has no outcome yet.
STILL_RUNNING = "is still running"
#: Where a rule is explained.
DOCS = "https://loopguard-otel.readthedocs.io/rules"

_WORDS: dict[str, Words] = {rule.name: rule.words for rule in RULES}
_OURS = frozenset(_WORDS)
_WAYS: dict[str, tuple[str, ...]] = {rule.name: rule.ways for rule in RULES if rule.ways}


def words(rule: str) -> Words:
    """The phrases of this rule; neutral ones for a rule of your own that has none."""
    return _WORDS.get(rule) or Words()


def learn(rule: str, own: Words) -> None:
    """Take in the phrases of a rule that is not ours."""
    if rule not in _OURS:
        _WORDS[rule] = own


def in_a_row(seqs: tuple[int, ...], done: int) -> str:
    """`` in a row`` where no other call lies between."""
    return " in a row" if done > 1 and seqs[-1] - seqs[0] == done - 1 else ""


def _call(finding: Finding) -> str:
    return "call" if len(finding.seqs) == 1 else "calls"


# -- sentences anybody may see ---------------------------------------------------------------------------------------


def sentence(hit: Hit, run_name: str, enforced: bool = True) -> str:
    """``str()`` of the error, and ``loopguard.loop.message``: no argument, no result, no threshold of a rule."""
    if hit.limit is not None:
        return limit_sentence(hit, run_name, enforced)
    n = hit.evidence.done
    if hit.action is Action.WARN:
        row = in_a_row(hit.evidence.seqs, n) if words(hit.rule).may_be_a_row else ""
        return f"{hit.tool} {_counted(words(hit.rule).past, n)}{row}"
    if hit.action is Action.REFUSE:
        said = f"{_counted(words(hit.rule).perfect, n)} in this run"
        if n < hit.threshold:  # calls in flight make up the rest
            said = f"is still running and {said}" if n else STILL_RUNNING
        did = "was not executed" if enforced else "would have been refused"
        return f"{hit.tool} {did}: {words(hit.rule).subject} {said}"
    did = "was stopped" if enforced else "would have been stopped"
    if hit.rule == "stop":
        return f"run {run_name!r} {did}: {hit.evidence.pattern[1]}"
    asked = f" and was asked for {_times(hit.refused, ' more')}" if hit.refused else ""
    return f"run {run_name!r} {did}: {hit.tool} {_counted(words(hit.rule).past, n)}{asked}"


def _counted(phrase: str, n: int) -> str:
    """The phrase with its number; once is not "1 times"."""
    return phrase.format(n=n).replace(" 1 times", " once")


def _times(n: int, more: str = "") -> str:
    return f"{n}{more} time{'s' if n != 1 else ''}"


def limit_sentence(hit: Hit, run_name: str, enforced: bool = True) -> str:
    """A limit names its own numbers."""
    assert hit.limit is not None
    name, used, allowed = hit.limit
    field, _, tool = name.rstrip("]").partition("[")
    many, most = amount(field, used, allowed), amount(field, allowed, allowed)
    if hit.action is Action.WARN:
        if tool:
            return f"{tool} has used {many} of its {most} calls in this run"
        return f"run {run_name!r} has used {many} of {most} {_UNITS.get(name, name)}"
    if hit.action is Action.REFUSE:
        did = "was not executed" if enforced else "would have been refused"
        return f"{hit.tool} {did}: its {most} calls in this run are used up"
    did = "was stopped" if enforced else "would have been stopped"
    what = f"calls of {tool}" if tool else name
    return f"run {run_name!r} {did}: {what} {many} of {most}{_what_repeated(name, hit.most)}"


_UNITS = {"cost": "USD", "refusals": "refusals"}


def amount(limit: str, value: float, allowed: float) -> str:
    """A number in the unit of this limit: money to the cent, or finer where it is about less."""
    if limit == "cost":
        return f"{value:.2f}" if allowed >= 1 else f"{value:.4f}"
    return f"{int(value):,}"


def _what_repeated(name: str, most: Most | None) -> str:
    assert most is not None  # the fold gives it with every stop
    after = "" if name == "calls" or not most.executed else f" after {most.executed:,} call{_s(most.executed)}"
    if not most.tool:
        return after
    if not most.different:
        return f"{after}; most called: {most.tool} ({most.calls:,} calls)"
    of = f" of the last {most.of:,}" if most.of else ""
    results = f"{most.different:,} different result{_s(most.different)}"
    return f"{after}; most repeated: {most.tool} ({most.calls:,}{of} calls, {results})"


def _s(n: int) -> str:
    return "" if n == 1 else "s"


def unfed_sentence(hit: Hit, run_name: str) -> str:
    """A limit on tokens or cost that sees nothing; for the developer."""
    assert hit.limit is not None
    name, calls, allowed = hit.limit
    price = ", or Limits(price=...)" if name == "cost" else ""
    return (
        f"{name} limit {amount(name, allowed, allowed)} in run {run_name!r} has seen no usage in {int(calls)} calls. "
        f"Feed it: run.note_usage(...), or an adapter{price}."
    )


def unpriced_sentence(model: str | None, allowed: float, run_name: str) -> str:
    """A limit on cost that cannot count what this model used; for the developer."""
    which = f"model {model!r}" if model else "usage without a model"
    return (
        f"cost limit {amount('cost', allowed, allowed)} in run {run_name!r} does not count {which}: it has no price. "
        "Say run.note_usage(cost=...), or Limits(price=...) with a function that knows it."
    )


# -- what a model reads ----------------------------------------------------------------------------------------------


def call_text(tool: str, target: tuple[str, str] | None) -> str:
    """The call as a model knows it: the tool, and its target where that is not secret."""
    return f"`{tool}`" if target is None else f'`{tool}` with {target[0]} "{target[1]}"'


def quote(excerpt: str | None) -> str:
    """An excerpt in quotes, shortened; "" if there is none."""
    if not excerpt:
        return ""
    short = excerpt if len(excerpt) <= EXCERPT else excerpt[: EXCERPT - 1] + "…"
    return f': "{short}"'


def nudge_text(finding: Finding, target: tuple[str, str] | None, excerpt: str | None, suggestion: str | None) -> str:
    """What is said beside a result: the observation, no advice but the tool's own."""
    if finding.rule in ("limits", "stop"):
        return f"Note: {finding.message}."
    facts = _facts(finding, target, excerpt)
    said = words(finding.rule)
    text = (
        f"Note: {said.nudge.format(**facts)}"
        if said.nudge
        else f"Note: {{call}} {said.perfect} {{calls}}.".format(**facts)
    )
    return f"{text} {suggestion}" if suggestion else text


def _facts(finding: Finding, target: tuple[str, str] | None, excerpt: str | None) -> dict[str, object]:
    """What stands for the places in the phrases of a rule."""
    return {
        "call": call_text(finding.tool, target),
        "n": finding.repetitions,
        "times": _times(finding.repetitions),
        "excerpt": quote(excerpt),
        "calls": f"({_call(finding)} {', '.join(map(str, finding.seqs))})",
    }


def refused_text(
    finding: Finding,
    target: tuple[str, str] | None,
    excerpt: str | None,
    suggestion: str | None,
    restarts: bool = True,
) -> str:
    """What a model reads in place of a result that was not fetched again."""
    if finding.rule == "limits":
        return f"Not executed: {finding.message}. Further calls of `{finding.tool}` will not be executed in this run."
    call = call_text(finding.tool, target)
    n = finding.repetitions
    if not n:
        text = (
            f"Not executed: {call} {STILL_RUNNING} with the same arguments, and has given no result yet. "
            "You can wait for its result, take another step, or say what is missing."
        )
        return f"{text} {suggestion}" if suggestion else text
    phrases = words(finding.rule)
    said = phrases.refused.format(**_facts(finding, target, excerpt))
    # Only what was looked for can be said not to have come.
    since = phrases.since if restarts or phrases.since != NO_CHANGE else ""
    if n < finding.threshold:
        since = f"The same call {STILL_RUNNING}."
    text = (
        f"Not executed: {call} {said} {since + ' ' if since else ''}This call will not be run again until something "
        "changes; "
        "you can use the result above, take another step, or say what is missing."
    )
    return f"{text} {suggestion}" if suggestion else text


def stopped_text(reason: str) -> str:
    """What a model reads when the run is over."""
    return (
        f"The run is over: {reason}. No further tool call will be executed. Report what you have and what is missing."
    )


# -- what a developer reads ------------------------------------------------------------------------------------------


def notes(finding: Finding, restarted: str) -> list[str]:
    """Lines below the traceback: rule, threshold, calls, and how to allow it."""
    run = f"run {finding.run_name!r} {finding.run_id[:8]}…"
    if finding.rule == "stop":
        return [f"loopguard: stopped from outside · {run}", '  allow    go on: run.resume("reason")']
    if finding.rule == "limits":
        lines = [f"loopguard: rule limits · {run}", "  allow    a higher limit: guarded_run(..., limits=Limits(...))"]
        return [*lines, f"  why      {DOCS}/limits"]
    calls = f"calls {', '.join(map(str, finding.seqs))} · " if finding.seqs else ""
    rung = f"{finding.action}_after={finding.threshold}"
    lines = [f"loopguard: rule {finding.rule}, {rung} · {run} · {calls}fingerprint {finding.fingerprint}"]
    if restarted:
        lines.append(f"           {restarted}")
    ways = [*_WAYS.get(finding.rule, ()), "only watch: LOOPGUARD_MODE=observe"]
    lines.append(f"  allow    {ways[0]}")
    lines += [f"           {way}" for way in ways[1:]]
    return [*lines, f"  why      {DOCS}/{finding.rule}"]


def outside_text(tool: str) -> str:
    """A guarded tool was called where no run is open."""
    return (
        f"{tool} was called outside a run: it is not guarded. "
        'Open one around the agent\'s work: with guarded_run("my-agent"): ...  '
        "In a thread pool: pool.submit(run.bind(f), ...). "
        '(Said once per tool; configure(outside_run="ignore") silences it, "raise" makes it an error.)'
    )


def outside_error(tool: str) -> str:
    """The same as an error."""
    return (
        f'{tool} was called outside a run, which configure(outside_run="raise") forbids. '
        'Open one around the agent\'s work: with guarded_run("my-agent"): ...  '
        "In a thread pool: pool.submit(run.bind(f), ...)."
    )

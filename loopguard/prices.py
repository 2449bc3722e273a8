"""What tokens cost: a function of the user's, or the table of ``genai-prices``, which is imported when it is needed."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from loopguard import _safety
from loopguard.errors import PolicyError

if TYPE_CHECKING:
    from loopguard.rules.limits import Price


def check(price: Price | None) -> None:
    """Raise ``PolicyError`` if the table that is asked for is not installed."""
    if isinstance(price, str) and find_spec("genai_prices") is None:
        raise PolicyError(
            f'Limits(price={price!r}) needs the package genai-prices: pip install "loopguard-otel[prices]". '
            "Or give a function of model, input tokens and output tokens."
        )


def price_of(price: Price | None, model: str | None, input_tokens: int, output_tokens: int) -> float | None:
    """US dollars for these tokens; None where the model, or its price, is not known."""
    if price is None or model is None:
        return None
    with _safety.guarded("price"):
        cost: Any = _from_table if isinstance(price, str) else price
        return money(cost(model, input_tokens, output_tokens))
    return None


def _from_table(model: str, input_tokens: int, output_tokens: int) -> Any:
    from genai_prices import Usage, calc_price

    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    # Routers and some frameworks put the provider before the model's name.
    provider, _, name = model.replace(":", "/", 1).rpartition("/")
    for ref, by in ((model, None), (name, provider or None), (name, None)):
        try:
            return calc_price(usage, model_ref=ref, provider_id=by).total_price
        except LookupError:
            continue
    return None


def money(value: Any) -> float | None:
    """An amount of money as a finite number of at least 0; None for anything else."""
    try:
        amount = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return amount if 0 <= amount < math.inf else None


def tokens(value: Any) -> int:
    """A number of tokens; 0 for what is none (some models leave it out)."""
    try:
        return max(0, int(value))
    except (TypeError, ValueError, OverflowError):
        return 0

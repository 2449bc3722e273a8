"""The pytest plugin: the fixture ``loopguard_events``.

pytest loads it in every project that has loopguard installed, so it imports nothing before the fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from loopguard.testing import Captured


@pytest.fixture
def loopguard_events() -> Iterator[Captured]:
    """What happens in the guarded runs of this test: ``.findings``, ``.actions``, ``.calls``, ``.nudges``.

    Errors inside loopguard are raised, and what the test configures is taken back at its end.
    """
    from loopguard import config
    from loopguard.testing import capture_events

    with config.keep(), capture_events() as events:
        yield events

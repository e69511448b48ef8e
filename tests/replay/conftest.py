"""What the tests of the command and of its report share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ridgeline.simulate import replay


@pytest.fixture
def ctrl_c_during(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has the user press Ctrl-C while the policy of this name is played."""

    def arrange(policy: str) -> None:
        real = replay.play

        def interrupted(name: str, *arguments: Any) -> dict[str, Any]:
            if name == policy:
                raise KeyboardInterrupt
            return real(name, *arguments)

        monkeypatch.setattr("ridgeline.replay_command.play", interrupted)

    return arrange

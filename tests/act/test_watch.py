from __future__ import annotations

import kopf
import pytest

from ridgeline.api.names import LABEL_FLEET
from ridgeline.handlers import Key, Watch, settings

CHAT = ("ns", "chat")


@pytest.fixture
def woken() -> list[Key]:
    return []


@pytest.fixture
def watch(woken: list[Key]) -> Watch:
    return Watch(woken.append)


def test_a_fleet_wakes_when_it_is_new_or_its_spec_changed(watch: Watch, woken: list[Key]) -> None:
    watch.fleet_event(CHAT, 1, gone=False, deleting=False)
    watch.fleet_event(CHAT, 1, gone=False, deleting=False)  # our own status write
    assert woken == [CHAT]
    watch.fleet_event(CHAT, 2, gone=False, deleting=False)
    assert woken == [CHAT, CHAT]


def test_a_fleet_that_goes_wakes_once_more_and_is_forgotten(watch: Watch, woken: list[Key]) -> None:
    watch.fleet_event(CHAT, 1, gone=False, deleting=False)
    watch.fleet_event(CHAT, 1, gone=False, deleting=True)
    watch.fleet_event(CHAT, 1, gone=True, deleting=True)
    assert woken == [CHAT] * 3
    assert watch.fleets == {}


def test_a_pod_wakes_its_fleet_and_a_strangers_pod_nobody(watch: Watch, woken: list[Key]) -> None:
    watch.fleet_event(CHAT, 1, gone=False, deleting=False)
    woken.clear()
    watch.child_event("ns", {LABEL_FLEET: "chat"})
    watch.child_event("elsewhere", {LABEL_FLEET: "chat"})
    watch.child_event("ns", {LABEL_FLEET: "unknown"})
    watch.child_event("ns", {})
    assert woken == [CHAT]


def test_kopf_only_watches() -> None:
    made = settings()
    assert isinstance(made, kopf.OperatorSettings)
    assert not made.posting.enabled
    assert made.peering.standalone
    assert made.scanning.disabled
    assert made.watching.server_timeout
    assert made.watching.client_timeout
    assert set(made.watching.label_selectors.values()) == {LABEL_FLEET}, "pods of others are not sent over the wire"

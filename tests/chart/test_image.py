"""The Dockerfile, read: what it copies is let through, and what runs is no superuser. The cluster tier builds it."""

from __future__ import annotations

import re

import pytest

from ridgeline.render.engine import RESTRICTED
from tests.tools.chart import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [
    (line.partition(" ")[0], line.partition(" ")[2])
    for line in DOCKERFILE.replace("\\\n", " ").splitlines()
    if re.match(r"[A-Z]+ ", line)
]
COPIED = [
    source for name, rest in INSTRUCTIONS if name == "COPY" and "--from" not in rest for source in rest.split()[:-1]
]


@pytest.mark.parametrize("source", COPIED)
def test_what_is_copied_exists_and_is_sent_to_the_build(source: str) -> None:
    assert (ROOT / source).exists()
    assert f"!{source}" in (ROOT / ".dockerignore").read_text().splitlines()


def test_dependencies_are_installed_before_sources_are_copied() -> None:
    order = DOCKERFILE.index("-r requirements.lock"), DOCKERFILE.index("COPY operator")
    assert order[0] < order[1]
    assert "--require-hashes" in DOCKERFILE


def test_it_runs_the_command_as_a_numbered_user_that_pods_ask_for() -> None:
    last: dict[str, str] = dict(INSTRUCTIONS)
    user, _, group = last["USER"].partition(":")
    assert user == group == str(RESTRICTED["runAsUser"])
    assert last["ENTRYPOINT"] == '["ridgeline"]'
    assert "PYTHONSAFEPATH=1" in last["ENV"]

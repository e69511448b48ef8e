"""A user's pod template over the rendered one."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.render.merge import merge

ENGINE = {"name": "engine", "image": "vllm", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}


@pytest.mark.parametrize(
    ("base", "patch", "expected"),
    [
        pytest.param({"a": 1}, {}, {"a": 1}, id="an empty patch changes nothing"),
        pytest.param({"a": 1}, {"b": 2}, {"a": 1, "b": 2}, id="new fields come after"),
        pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}, id="dicts merge by field"),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="null removes"),
        pytest.param({"a": {"b": 1}}, {"a": 2}, {"a": 2}, id="another type replaces"),
        pytest.param({"args": ["1"]}, {"args": ["2"]}, {"args": ["2"]}, id="plain lists are replaced"),
        pytest.param(
            {"containers": [ENGINE]},
            {"containers": [{"name": "side", "image": "s"}, {"name": "engine", "image": "mine"}]},
            {"containers": [{**ENGINE, "image": "mine"}, {"name": "side", "image": "s"}]},
            id="containers merge by name and ours stay first",
        ),
        pytest.param(
            {"containers": [ENGINE]},
            {
                "containers": [
                    {"name": "engine", "env": [{"name": "B", "valueFrom": {"x": 1}}, {"name": "C", "value": ""}]}
                ]
            },
            {
                "containers": [
                    {
                        **ENGINE,
                        "env": [
                            {"name": "A", "value": "1"},
                            {"name": "B", "valueFrom": {"x": 1}},
                            {"name": "C", "value": ""},
                        ],
                    }
                ]
            },
            id="a variable is a choice: valueFrom ousts value",
        ),
        pytest.param(
            {"volumes": [{"name": "cache", "emptyDir": {}}]},
            {"volumes": [{"name": "cache", "nfs": {"server": "s"}}]},
            {"volumes": [{"name": "cache", "nfs": {"server": "s"}}]},
            id="a volume is a choice too",
        ),
        pytest.param(
            {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}]},
            {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
            id="of the same kind it merges",
        ),
        pytest.param(
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
            id="tolerations add up, once each",
        ),
    ],
)
def test_merge(base: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]) -> None:
    merged = merge(base, patch)
    assert merged == expected
    assert list(merged) == list(expected)


def test_neither_side_is_changed() -> None:
    base: dict[str, Any] = {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}]}
    patch: dict[str, Any] = {"containers": [{"name": "engine", "env": [{"name": "A", "value": "2"}]}]}
    merge(base, patch)
    assert base == {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}]}
    assert patch == {"containers": [{"name": "engine", "env": [{"name": "A", "value": "2"}]}]}

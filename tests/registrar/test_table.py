"""The difference between two worker tables, and the order in which it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.api.fleet import Role
from ridgeline.registrar.table import (
    Add,
    Engine,
    Operation,
    Remove,
    State,
    Update,
    Worker,
    differences,
    operations,
    serves,
)

M, P, D = Role.MIXED, Role.PREFILL, Role.DECODE


def desired(**roles: Role) -> dict[str, Engine]:
    return {f"http://{name}": Engine(name, f"http://{name}", role) for name, role in roles.items()}


def table(**roles: Role | None) -> list[Worker]:
    return [Worker(f"id-{name}", f"http://{name}", role, State.HEALTHY, name) for name, role in roles.items()]


def short(planned: Iterable[Operation]) -> list[str]:
    """Operations as a reader would write them: +a M, a M>P, -a."""
    words = []
    for operation in planned:
        if isinstance(operation, Add):
            words.append(f"+{operation.engine.pod} {operation.engine.role.name[0]}")
        elif isinstance(operation, Update):
            before = operation.worker.role.name[0] if operation.worker.role else "?"
            words.append(f"{operation.engine.pod} {before}>{operation.engine.role.name[0]}")
        else:
            words.append(f"-{operation.worker.pod}")
    return words


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({}, {}, [], id="nothing of nothing"),
        pytest.param({"a": M}, {"a": M}, [], id="a right table is left alone"),
        pytest.param({}, {"a": M, "b": M}, ["+a M", "+b M"], id="an empty table (a restarted router) is filled"),
        pytest.param({"a": M}, {"b": M}, ["+b M", "-a"], id="the new engine comes before the old one goes"),
        pytest.param({"a": M, "b": M}, {"a": P, "b": D}, ["a M>P", "b M>D"], id="split: each engine alone is no risk"),
        pytest.param({"a": P, "b": D}, {"a": M, "b": M}, ["a P>M", "b D>M"], id="merge"),
        pytest.param(
            {"a": P, "b": D}, {"a": D, "b": P}, ["a P>M", "b D>P", "a M>D"], id="trading places passes through mixed"
        ),
        pytest.param({"a": M, "b": D}, {"a": P, "b": D}, ["a M>P"], id="the last mixed engine may complete a pair"),
        pytest.param(
            {"a": P, "b": D, "c": D}, {"a": D, "b": P, "c": D}, ["b D>P", "a P>D"], id="the order that keeps a pair"
        ),
        pytest.param({"a": P, "b": D}, {"b": M}, ["b D>M", "-a"], id="the partner turns mixed before one goes"),
        pytest.param({"a": P, "b": D, "c": M}, {"c": P, "b": D}, ["c M>P", "-a"], id="a replacement takes over first"),
        pytest.param({"a": P}, {"a": D}, ["a P>D"], id="a table that does not serve takes no detour"),
        pytest.param({"a": M}, {"a": D}, ["a M>D"], id="nor does one that will not serve"),
        pytest.param({"a": M}, {}, ["-a"], id="the last engine goes when it must"),
        pytest.param({"a": None}, {"a": M}, ["a ?>M"], id="an entry of another kind is replaced"),
    ],
)
def test_operations_are_the_difference_in_an_order_that_serves(
    before: dict[str, Role | None], after: dict[str, Role], expected: list[str]
) -> None:
    assert short(operations(desired(**after), table(**before))) == expected


def test_a_draining_entry_is_neither_removed_again_nor_added_yet() -> None:
    draining = [replace(worker, state=State.DRAINING) for worker in table(a=M)]
    assert operations({}, draining) == []
    assert operations(desired(a=M), draining) == []
    assert differences({}, draining) == []
    assert differences(desired(a=M), draining) == ["a is draining"]


def test_an_address_that_another_pod_got_is_written_anew() -> None:
    stale = [replace(worker, pod="old") for worker in table(a=M)]
    planned = operations(desired(a=M), stale)
    assert short(planned) == ["a M>M"]
    assert isinstance(planned[0], Update)
    assert not planned[0].changes_role


def test_an_unhealthy_mixed_engine_does_not_count_as_one_that_serves() -> None:
    sick = [replace(worker, state=State.UNHEALTHY) for worker in table(c=M)]
    assert short(operations(desired(a=D, b=P, c=M), [*table(a=P, b=D), *sick])) == ["a P>M", "b D>P", "a M>D"]


@pytest.mark.parametrize(
    ("state", "phrase"),
    [
        pytest.param(State.UNHEALTHY, ["a is unhealthy"], id="unhealthy"),
        pytest.param(State.HEALTHY, [], id="healthy"),
    ],
)
def test_a_worker_that_the_router_holds_for_sick_is_a_difference(state: State, phrase: list[str]) -> None:
    assert differences(desired(a=M), [replace(worker, state=state) for worker in table(a=M)]) == phrase


def test_differences_name_pods_and_roles() -> None:
    found = differences(desired(a=P, b=D), [*table(a=M), *table(gone=M)])
    assert found == [
        "a is mixed instead of prefill",
        "b is not in the table yet",
        "gone is still in the table",
    ]


roles = st.sampled_from(list(Role))
names = st.sampled_from("abcdef")
engines = st.dictionaries(names, roles, max_size=6)


def apply(operation: Operation, now: dict[str, Worker]) -> dict[str, Worker]:
    """What a router makes of an operation."""
    if isinstance(operation, Add):
        engine = operation.engine
        return {**now, engine.url: Worker(f"id-{engine.pod}", engine.url, engine.role, State.HEALTHY, engine.pod)}
    if isinstance(operation, Remove):
        return {url: worker for url, worker in now.items() if url != operation.worker.url}
    engine, before = operation.engine, now[operation.worker.url]
    assert before.role is operation.worker.role, "each operation starts from what the last one left"
    return {**now, engine.url: replace(before, role=engine.role, pod=engine.pod)}


def serving(now: Iterable[Worker]) -> bool:
    return serves(worker.role for worker in now if worker.state is State.HEALTHY)


@given(before=engines, after=engines, sick=st.sets(names))
def test_the_desired_table_is_reached_and_serves_all_along(
    before: dict[str, Role], after: dict[str, Role], sick: set[str]
) -> None:
    start: Sequence[Worker] = [
        replace(worker, state=State.UNHEALTHY) if worker.pod in sick else worker for worker in table(**before)
    ]
    now = {worker.url: worker for worker in start}
    on_the_way = [now]
    for operation in operations(desired(**after), start):
        now = apply(operation, now)
        on_the_way.append(now)
    assert {url: (worker.role, worker.pod) for url, worker in now.items()} == {
        url: (engine.role, engine.pod) for url, engine in desired(**after).items()
    }
    if serving(start) and serving(now.values()):
        assert all(serving(step.values()) for step in on_the_way)


@given(before=engines, after=engines)
def test_at_most_one_operation_more_than_there_are_differences(before: dict[str, Role], after: dict[str, Role]) -> None:
    planned = operations(desired(**after), table(**before))
    changed = {name for name in {*before, *after} if before.get(name) is not after.get(name)}
    assert len(changed) <= len(planned) <= len(changed) + 1

"""The client of the kubelet's pod-resources API, against a real gRPC server that plays the kubelet."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from ridgeline_exporters.gpu.ownership import KEEP_SECONDS, Ownership
from ridgeline_exporters.gpu.pod_resources import MESSAGES, PodResources, PodResourcesError
from ridgeline_exporters.gpu.units import Holders, Pod
from tests.gpu.kubelet_stand_in import FIELDS, KubeletStandIn, kubelet

A, B = Pod("chat", "engines-a"), Pod("chat", "engines-b")
MODULES = Path(os.environ.get("GOMODCACHE") or Path.home() / "go" / "pkg" / "mod")
APIS = sorted(MODULES.glob("k8s.io/kubelet@*/pkg/apis/podresources/v1/api.proto"))


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
def client(socket: Path) -> Iterator[PodResources]:
    with closing(PodResources(socket)) as found:
        yield found


def test_devices_are_mapped_to_the_pods_that_hold_them(client: PodResources, socket: Path) -> None:
    stand_in = KubeletStandIn(
        {
            ("chat", "engines-a"): {"nvidia.com/gpu": ["GPU-1", "GPU-2"], "rdma/hca": ["mlx5_0"]},
            ("chat", "engines-b"): {"nvidia.com/mig-3g.40gb": ["MIG-1"], "nvidia.com/gpu.shared": ["GPU-3::1"]},
            ("x", "without"): {},
        }
    )
    with kubelet(socket, stand_in):
        assert client.holders() == {"GPU-1": {A}, "GPU-2": {A}, "MIG-1": {B}, "GPU-3": {B}}


def test_pods_that_share_a_gpu_are_all_named(client: PodResources, socket: Path) -> None:
    shares = {("chat", f"engines-{name}"): {"nvidia.com/gpu": [f"GPU-1::{i}"]} for i, name in enumerate("ab")}
    with kubelet(socket, KubeletStandIn(shares)):
        assert client.holders() == {"GPU-1": {A, B}}


def test_a_large_node_fits_in_an_answer(client: PodResources, socket: Path) -> None:
    pods = {("n", f"pod-{i}"): {"nvidia.com/gpu": [f"GPU-{i}-{j:08}" for j in range(200)]} for i in range(2000)}
    with kubelet(socket, KubeletStandIn(pods)):
        assert len(client.holders()) == 400_000


def test_a_kubelet_that_is_not_there_or_refuses_is_named(client: PodResources, socket: Path) -> None:
    with pytest.raises(PodResourcesError, match=r"kubelet\.sock: UNAVAILABLE"):
        client.holders()
    with (
        kubelet(socket, KubeletStandIn(failure=grpc.StatusCode.RESOURCE_EXHAUSTED)),
        pytest.raises(PodResourcesError, match=r"UNAVAILABLE|RESOURCE_EXHAUSTED"),
    ):
        client.holders()


def test_a_kubelet_that_starts_again_is_found_again(client: PodResources, socket: Path) -> None:
    for pod in ("engines-a", "engines-b"):
        with kubelet(socket, KubeletStandIn({("chat", pod): {"nvidia.com/gpu": ["GPU-1"]}})):
            found: Holders = {}
            for _ in range(30):  # each waits for its time-out at most, while gRPC connects anew
                try:
                    found = client.holders()
                except PodResourcesError:
                    continue
                break
            assert found == {"GPU-1": {Pod("chat", pod)}}


@pytest.mark.skipif(not APIS, reason="the kubelet's sources are not on this machine; `make cluster-up` fetches them")
def test_fields_are_those_of_the_kubelets_own_description() -> None:
    text = re.sub(r"//.*", "", APIS[-1].read_text())
    described = {
        name: {
            field: (int(number), kind.strip()) for kind, field, number in re.findall(r"([\w ]+?) (\w+) = (\d+);", body)
        }
        for name, body in re.findall(r"message (\w+) \{(.*?)\}", text, re.DOTALL)
    }
    for name, fields in MESSAGES.items():
        for field, (number, kind) in fields.items():
            assert described[name][field] == (number, kind), f"{name}.{field}"
    for name, listed in FIELDS.items():
        for field, number, _, of in listed:
            assert described[name][field][0] == number, f"{name}.{field}"
            assert of in described[name][field][1]
    assert "service PodResourcesLister" in text
    assert "package v1;" in text


class Answers:
    """Answers one after another; an exception is raised."""

    def __init__(self, *answers: Holders | Exception) -> None:
        self.answers = list(answers)

    def holders(self) -> Holders:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_the_last_answer_is_believed_for_a_minute_while_the_kubelet_is_away(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    away = PodResourcesError("away")
    ownership = Ownership(Answers({"GPU-1": {A}}, away, away, {"GPU-1": {B}}), lambda: now)
    assert (ownership.holders(), ownership.up) == ({}, False)
    ownership.ask()
    assert (ownership.holders(), ownership.up) == ({"GPU-1": {A}}, True)
    now = KEEP_SECONDS - 1
    ownership.ask()
    assert (ownership.holders(), ownership.up) == ({"GPU-1": {A}}, False)
    now = KEEP_SECONDS
    ownership.ask()
    assert ownership.holders() == {}
    assert ownership.errors == 2
    assert [record.getMessage().endswith("away") for record in caplog.records] == [True], "said once"
    ownership.ask()
    assert (ownership.holders(), ownership.up) == ({"GPU-1": {B}}, True)

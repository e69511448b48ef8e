"""A gRPC server on a Unix socket that plays the kubelet's pod-resources API.

Its messages are made from the kubelet's own list of fields, copied below from
k8s.io/kubelet v0.37.2, pkg/apis/podresources/v1/api.proto, with more fields than the exporter reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

STRING, INT64, MESSAGE = 9, 3, 11
FIELDS: dict[str, list[tuple[str, int, int, str]]] = {
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": [("pod_resources", 1, MESSAGE, "PodResources")],
    "PodResources": [
        ("name", 1, STRING, ""),
        ("namespace", 2, STRING, ""),
        ("containers", 3, MESSAGE, "ContainerResources"),
        ("cpu_ids", 4, INT64, ""),
    ],
    "ContainerResources": [
        ("name", 1, STRING, ""),
        ("devices", 2, MESSAGE, "ContainerDevices"),
        ("cpu_ids", 3, INT64, ""),
    ],
    "ContainerDevices": [
        ("resource_name", 1, STRING, ""),
        ("device_ids", 2, STRING, ""),
        ("topology", 3, MESSAGE, "TopologyInfo"),
    ],
    "TopologyInfo": [("nodes", 1, MESSAGE, "NUMANode")],
    "NUMANode": [("ID", 1, INT64, "")],
}
ONE = {"name", "namespace", "resource_name", "topology", "ID"}
"""Fields that are not repeated."""


def messages() -> dict[str, Any]:
    """The kubelet's messages."""
    file = descriptor_pb2.FileDescriptorProto(name="kubelet.proto", package="v1", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, of in fields:
            label = 1 if field_name in ONE else 3
            type_name = f".v1.{of}" if of else None
            message.field.add(name=field_name, number=number, type=kind, label=label, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in FIELDS}


@dataclass
class KubeletStandIn:
    """What it answers: (namespace, pod) → resource → device ids, all in one container."""

    pods: dict[tuple[str, str], dict[str, list[str]]] = field(default_factory=dict)
    failure: grpc.StatusCode | None = None
    authorities: list[str] = field(default_factory=list)

    def answer(self, _: Any, context: grpc.ServicerContext) -> Any:
        """Answer a List."""
        if self.failure:
            context.abort(self.failure, "the stand-in was told to fail")
        classes = messages()
        response = classes["ListPodResourcesResponse"]()
        for (namespace, name), resources in self.pods.items():
            pod = response.pod_resources.add(namespace=namespace, name=name, cpu_ids=[1, 2])
            container = pod.containers.add(name="engine", cpu_ids=[3])
            for resource, ids in resources.items():
                devices = container.devices.add(resource_name=resource, device_ids=ids)
                devices.topology.nodes.add(ID=1)
        return response


@contextmanager
def kubelet(socket: Path, stand_in: KubeletStandIn) -> Iterator[None]:
    """Serve on a socket for the length of the block."""
    classes = messages()
    handler = grpc.unary_unary_rpc_method_handler(
        stand_in.answer,
        request_deserializer=classes["ListPodResourcesRequest"].FromString,
        response_serializer=classes["ListPodResourcesResponse"].SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait(30)

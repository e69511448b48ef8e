"""Who holds which device, from the kubelet's pod-resources socket.

The API is `v1.PodResourcesLister` of `k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`; only the fields that are read
are described here, and a receiver skips the rest. The messages are described at run time because generated code would
have to be generated anew for each major version of protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ridgeline_exporters.gpu.units import Holders, Pod, plain_device_id

LIST = "/v1.PodResourcesLister/List"
RESOURCES = "nvidia.com/"
"""Beginning of the names of resources that are NVIDIA GPUs or parts of them."""
TIMEOUT_SECONDS = 5.0
LARGEST_ANSWER_BYTES = 16 * 1024 * 1024
"""The kubelet's own client takes this much; gRPC's default of 4 MiB is too little for a node full of pods."""

MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "repeated PodResources")},
    "PodResources": {
        "name": (1, "string"),
        "namespace": (2, "string"),
        "containers": (3, "repeated ContainerResources"),
    },
    "ContainerResources": {"name": (1, "string"), "devices": (2, "repeated ContainerDevices")},
    "ContainerDevices": {"resource_name": (1, "string"), "device_ids": (2, "repeated string")},
}
"""Message → field → (number, type), as the kubelet's `api.proto` has them."""


class PodResourcesError(Exception):
    """The kubelet does not say who holds what. The message says why."""


def message_classes() -> dict[str, Any]:
    """The classes of the messages, made from their description."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="podresources/v1/api.proto", package="v1", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            repeated, _, plain = kind.rpartition(" ")
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            each = message.field.add(name=field_name, number=number, label=label)
            if plain == "string":
                each.type = field.TYPE_STRING
            else:
                each.type, each.type_name = field.TYPE_MESSAGE, f".v1.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in MESSAGES}


class PodResources:
    """A client of the kubelet of this node.

    Args:
        socket: path of the kubelet's socket. It may appear later, and be replaced when the kubelet starts again.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        classes = message_classes()
        self._request = classes["ListPodResourcesRequest"]
        # The socket's path is no authority that Go's HTTP/2 server accepts.
        options = [
            ("grpc.default_authority", "localhost"),
            ("grpc.max_receive_message_length", LARGEST_ANSWER_BYTES),
            ("grpc.max_reconnect_backoff_ms", 5000),
        ]
        self._channel = grpc.insecure_channel(f"unix://{socket.absolute()}", options=options)
        self._list = self._channel.unary_unary(
            LIST,
            request_serializer=self._request.SerializeToString,
            response_deserializer=classes["ListPodResourcesResponse"].FromString,
        )

    def holders(self) -> Holders:
        """Who holds which device now.

        Raises:
            PodResourcesError: the kubelet cannot be asked.
        """
        try:
            answer = self._list(self._request(), timeout=TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            raise PodResourcesError(f"{self._socket}: {error.code().name}: {error.details()}") from error
        return holders(answer.pod_resources)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


def holders(pods: Iterable[Any]) -> Holders:
    """Device → pods that hold it, of the NVIDIA devices in the kubelet's answer."""
    found: dict[str, set[Pod]] = {}
    for pod in pods:
        for container in pod.containers:
            for devices in container.devices:
                if devices.resource_name.startswith(RESOURCES):
                    for device_id in devices.device_ids:
                        found.setdefault(plain_device_id(device_id), set()).add(Pod(pod.namespace, pod.name))
    return found

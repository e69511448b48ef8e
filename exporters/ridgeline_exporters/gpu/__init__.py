"""The GPU exporter: what the GPUs of a node measured, with the pod that holds each.

It runs once per node, beside nothing: `nvml` asks the driver, `monitor` does so every second and remembers the last ten,
`pod_resources` asks the kubelet who holds which GPU, `metrics` publishes. The engine exporter's numbers come from a model
of the work; these come from the hardware's own counters, so that the model can be held against them.
"""

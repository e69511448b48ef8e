"""A plug-in of the tests that runs inside an engine: it records what the model computes and plants faults.

vLLM loads it beside the exporter, in each of its processes. It is installed by `install_test_plugin` only.
"""

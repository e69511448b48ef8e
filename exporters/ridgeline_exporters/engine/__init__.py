"""The engine exporter: a vLLM plug-in that accounts for every step of an engine by phase.

It lives in vLLM's EngineCore process. `plugin` wraps the scheduler, `exporter` turns each step into numbers, `tokens`
clocks what requests get, `metrics` publishes it all and `control` takes the limits that the operator posts. Nothing
here may ever reach the engine as an exception.
"""

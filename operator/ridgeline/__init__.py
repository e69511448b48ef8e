"""Ridgeline: keeps every GPU of a vLLM fleet on the right side of the roofline."""

__version__ = "0.1.0"

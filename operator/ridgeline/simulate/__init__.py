"""An event-driven model of a fleet: engines as vLLM schedules them, a router, KV transfers, an operator that is late.

Pure: no I/O, no clock, no randomness. Where chance is wanted, the caller passes a seeded `Dice` in.
"""

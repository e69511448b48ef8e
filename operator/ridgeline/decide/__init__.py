"""Snapshot + spec + history → a plan, or a reason to hold. Pure: no I/O, no clock, no randomness."""

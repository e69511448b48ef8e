"""The cost model: how long one step of an engine takes, from the roofline and from efficiencies that were measured.

Pure. Read in this order: `efficiency` (what was measured, and where), `step_cost` (the seconds of a step).
"""

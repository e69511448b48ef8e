"""The cost model: how long one step of an engine takes, from the roofline and from efficiencies that were measured.

Pure. Read in this order: `efficiency` (what can be measured), `hardware` (what was, on which accelerator),
`model_work` (what a model's step is made of), `step_cost` (its seconds), `points` and `validation` (the model against
measurements).
"""

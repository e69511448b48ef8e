"""The roofline model: what a model must compute and move per phase, and how fast an accelerator can do it.

Pure and standard library only, for it runs inside vLLM's process as well as in the operator. Read in this order:
`hardware` (peaks), `mixers` and `feed_forward` (what a layer costs), `families` (which layers a config.json means), `formats` and
`quantization` (bytes), `parallelism` (what GPUs hold more than once), `model` (all of it summed up), `windows` and
`work` (FLOPs and bytes of a step), `bounds` (time).
"""

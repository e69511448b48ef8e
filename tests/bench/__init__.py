"""`make bench`: what the engine exporter costs, each figure with its goal. Nothing here is a test: timings vary."""

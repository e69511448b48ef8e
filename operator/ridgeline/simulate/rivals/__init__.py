"""Rival policies as published, for comparison on the same simulated fleet: one file each, with its source."""

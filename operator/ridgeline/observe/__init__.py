"""Prometheus, engines and routers → one immutable Snapshot per fleet. The only room that reads the world."""

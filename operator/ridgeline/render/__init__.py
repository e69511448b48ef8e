"""From a fleet to the manifests that make it, without touching anything.

`render_fleet` answers with plain dicts in the order in which they are to be applied; `validate`
says why a fleet cannot work before anything is applied. Neither reads a clock, a cluster or the
network, so the same fleet always yields the same manifests.
"""

from ridgeline.render.manifests import render_fleet
from ridgeline.render.validation import validate

__all__ = ["render_fleet", "validate"]

"""The report of a replay: one HTML file that needs no network, from the answer that `ridgeline replay --json` prints."""

from ridgeline.replay_report.page import report_html

__all__ = ["report_html"]

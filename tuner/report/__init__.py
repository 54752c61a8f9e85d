"""report.html: what a study asked, found and measured, on one page that opens without a network."""

from tuner.report.front import front_trials
from tuner.report.page import front_html, report_html

__all__ = ["front_html", "front_trials", "report_html"]

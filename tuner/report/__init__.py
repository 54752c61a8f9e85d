"""report.html: what a study asked, found and measured, on one page that opens without a network."""

from tuner.report.page import front_html, report_html

__all__ = ["front_html", "report_html"]

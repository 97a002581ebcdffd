"""The HTML report of a fold, one self-contained page."""

from onnxfold.html_report.command_line import command_line
from onnxfold.html_report.sections import render_html

__all__ = ["command_line", "render_html"]

"""The report in Markdown, without charts."""

from __future__ import annotations

from collections.abc import Iterable

from hvdtrain.views.report.content import Report
from hvdtrain.views.report.definitions import DEFINITIONS
from hvdtrain.views.report.text_table import escape


def to_markdown(report: Report) -> str:
    """The page: what came out, the figures, the runs, and at the end what was used and what the figures mean."""
    parts = [f"# {report.title}\n", *(f"{escape(sentence)}\n" for sentence in report.findings)]
    parts += [f"{escape(report.summary())}\n", f"## Figures\n\n{report.main_table().markdown()}"]
    parts.append(f"## More figures\n\n{report.more_table().markdown()}")
    if report.classes:
        parts.append("## Test accuracy of classes\n\n" + _list(report.classes))
    parts.append("## Runs\n\n" + _list(f"{label}: {'; '.join(runs)}" for label, runs in report.runs()))
    if report.unfinished:
        parts.append("## Unfinished runs\n\n" + _list(report.unfinished))
    parts.append("## Machine\n\n" + _list(report.machines()))
    for title, pairs in (("Versions", report.versions()), ("Settings", report.settings())):
        parts.append(f"## {title}\n\n" + _list(f"{name}: {text}" for name, text in pairs))
    parts.append("## Definitions\n\n" + "".join(f"- **{name}**: {escape(text)}\n" for name, text in DEFINITIONS))
    return "\n".join(parts)


def _list(items: Iterable[str]) -> str:
    return "".join(f"- {escape(item)}\n" for item in items)

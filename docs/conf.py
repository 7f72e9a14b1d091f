"""How Sphinx builds the site (make docs), of the pages as a repository shows them."""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import hvdtrain  # noqa: E402

project = "hvdtrain"
author = project_copyright = "the hvdtrain developers"
version = release = hvdtrain.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
# Relative links then work in a repository and in the site: the sources are all pages, from the root of the checkout.
include_patterns = ["docs/*.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
include_patterns += ["examples/README.md", "tests/faults/README.md", "tests/horovod_suite/README.md"]
root_doc = "docs/index"
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
default_role = "code"
smartquotes = False  # they would change -- in the names of options
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
html_theme = "furo"
html_static_path, html_css_files = ["style"], ["tables.css"]
html_title = f"hvdtrain {version}"

REDIRECT = '<!doctype html><title>hvdtrain</title><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
VERSIONS = """<!doctype html><html lang="en"><meta charset="utf-8"><title>hvdtrain: versions</title>
<h1>hvdtrain</h1><p>Documentation of the versions:</p><ul>{}</ul></html>
"""


def list_versions(app: Any, error: Exception | None) -> None:
    """Next to the folder of this version, write the page that links to each version that has a folder there."""
    site = Path(app.outdir)
    if error or app.builder.name != "html":
        return
    (site / "index.html").write_text(REDIRECT)
    versions = sorted(path.parent.name for path in site.parent.glob("*/index.html"))
    links = "".join(f'<li><a href="{html.escape(name)}/index.html">{html.escape(name)}</a></li>' for name in versions)
    (site.parent / "index.html").write_text(VERSIONS.format(links))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("build-finished", list_versions)

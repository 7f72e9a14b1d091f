"""Reports: what runs measured, as Markdown, CSV and one HTML page."""

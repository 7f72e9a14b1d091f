"""The report: what runs measured, compared in tables and charts."""

"""What shows runs: tables, figures and findings, in the terminal, on a web page, in a report."""

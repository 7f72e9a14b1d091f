"""Starting a job: its description, each launcher's command line, supervision and restarts."""

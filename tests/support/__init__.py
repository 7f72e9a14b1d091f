"""What test files share: starting jobs as users do, clusters on one machine, programs with faults, data files."""

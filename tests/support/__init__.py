"""What several test files share: starting jobs as users start them, clusters on one machine, programs that go wrong."""

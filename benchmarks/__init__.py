"""Speed and quality against a peer measured in the same run; never asserted as times in tests."""

"""Reports: HTML pages that open without a network, the pull-request comment, and their charts."""

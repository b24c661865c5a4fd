"""Create HTML pages that open without a network, pull-request comments, and their charts."""

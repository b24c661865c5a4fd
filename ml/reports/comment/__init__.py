"""The pull-request comment: a candidate beside the champion."""

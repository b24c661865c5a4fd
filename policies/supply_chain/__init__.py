"""What a release may contain: model formats, licences, and packages without advisories."""

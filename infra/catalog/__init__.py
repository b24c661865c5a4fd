"""What Azure offers: VM sizes, regions and prices."""

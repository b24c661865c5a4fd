"""Distributed jobs: who starts their processes on one machine, and whose fault an end was."""

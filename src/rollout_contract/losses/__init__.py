"""Losses: they take a validated batch and a frozen configuration, and return a value with mergeable metrics."""

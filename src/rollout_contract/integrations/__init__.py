"""Trainers whose losses run through the contract; each needs its own extra."""

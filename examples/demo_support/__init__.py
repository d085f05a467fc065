"""The parts of the demo: see ``docs/demo.md`` for a tour."""

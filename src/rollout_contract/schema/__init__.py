"""How a schema works: the plan compiled from its annotations, the build, the seal, and the frozen batch."""

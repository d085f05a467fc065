"""Obvious implementations of every formula, to hold the library against.

Plain loops over samples and tokens, one float64 scalar per token, written from the papers' formulas. A batch is a list
of rows of different lengths, a mask is rows of bools. What lies at a masked position is never read. Where a loss is
differentiated, autograd differentiates the formula as it stands here; a stop-gradient is a ``.detach()``.
"""

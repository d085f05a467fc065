"""Pure tensor functions: packed vectors in, packed vectors out; no batch, no configuration object, no checks.

They run under ``torch.compile(fullgraph=True)``. Every kernel that takes a ``loss_mask`` replaces masked inputs
before any arithmetic, so that neither its value nor its gradient can see what lies there.
"""

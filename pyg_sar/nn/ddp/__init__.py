"""Data-parallel training: what every rank's gradients are.

The gradient is that of the mean over the P ranks of their losses, ``M = (L_1 + ... + L_P) / P``, as
with torch's DistributedDataParallel. Every rank starts backward with 1, and exchanges give
gradients back to where rows came from, so rank r finds ``d(L_1 + ... + L_P) / d(its copy of p)``;
added up over the ranks and divided by P that is ``dM/dp``. A loss that is equal on all ranks is M
itself: a penalty of the weights counts once, and so does a mean of rows, whose backward adds up
what all ranks make of its value. A tensor of one rank's own has no copies: its gradient is only
divided by P.
"""

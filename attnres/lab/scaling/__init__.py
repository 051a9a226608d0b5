"""Scaling laws at laptop scale: loss against compute for several sizes, and the compute that a connection saves.

    attnres scaling
    attnres scaling residual full --sizes 8x32 12x48 16x64 --seeds 2
    attnres scaling residual block --sizes 16x32 16x48 16x64@10 --tokens-per-parameter 20 --grid 0.5 1 2

Trains every connection at every size on tokens in proportion to the parameters, fits L = A C^-a in log space, and says
how many times the compute the first connection needs for the others' loss, along the range and with 95% bootstrap
intervals, of each and of all at once. With --grid every arm gets its own learning rates. Every run has a folder of its
own; stop it with Ctrl-C or in any other way, and the same command goes on. RECORD has what is done after every phase
and where the sweep was stopped, and is all that another machine needs to go on with it. Ends with a table,
OUT/results.html and OUT/figures/; `attnres report RECORD` draws them again from RECORD, and `attnres fit` fits points
from anywhere.
"""

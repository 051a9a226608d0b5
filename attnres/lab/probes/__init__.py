"""Ask trained models of bytes: the next byte, which bracket closes, indentation, names, copies: what is a lead worth?

    attnres probe --runs runs/dynamics
    attnres probe runs/compare/residual/seed-0 runs/compare/block/seed-0
    attnres probe --runs runs/ladder-16 --tokens 262144 --out runs/probe-ladder

Asks on held-out files for the next byte; for the kind of bracket that closes the innermost open one; whether a line's
indentation goes on; for names that were last seen half a window ago; and for text and random letters that come again in
one window. Runs of one connection and several seeds make one row, and differences to the residual (or the first
connection, where there is none) are paired by seed. Runs that are not finished, or that ended no lower than they began,
are marked and left out. Ends with tables, OUT/results.html and OUT/figures/; `attnres report RECORD` draws them from
RECORD.
"""

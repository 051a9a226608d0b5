"""Switch off each sublayer of trained models in turn and report the loss it adds: are layers redundant?

    attnres prune runs/compare/residual/seed-0 runs/compare/block/seed-0
    attnres prune --runs runs/dynamics
    attnres prune --runs runs/compare --tokens 65536 --out runs/prune-long

A sublayer that is switched off returns zero; all else stays, and nothing is trained again. For AttnRes that is the same
as taking the source out of the softmax: what mass a zero takes only scales the mixture, and sublayers begin with a
norm. Runs of one connection and several seeds make one row, and differences to the residual (or the first connection,
where there is none) are paired by seed. Runs that are not finished, or that ended no lower than they began, are marked
and left out. What is measured stays in prune.json in every run's folder, so after Ctrl-C the same command goes on.
Ends with tables, OUT/results.html and OUT/figures/; `attnres report RECORD` draws them again from RECORD.
"""

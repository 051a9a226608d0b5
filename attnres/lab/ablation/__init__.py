"""The paper's ablation table at laptop scale: every residual rule, its learning rate tuned, with error bars.

    attnres ablate
    attnres ablate --budget 30m
    attnres ablate residual block full hc --seeds 5 --embedding-stds 1.0
    attnres ablate residual full full:heads=4 --grid 1 --steps 400 --out runs/heads

For each arm and scale of the embedding, the learning rates are chosen from a grid of multiples of the defaults: all of
it on one seed, the best two on others too, none of them reported; then every arm runs on the same seeds, so differences
to the first arm are paired. Every run is a one-thread process with a folder of its own; stop it with Ctrl-C or in any
other way, and the same command goes on. A run that diverges is kept, marked, and left out of the means. Ends with
tables, OUT/results.html and OUT/figures/. Arms that RECORD holds already, with the same options and as many seeds or
more, are not run again; `attnres report RECORD` draws from it.
"""

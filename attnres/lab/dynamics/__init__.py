"""What depth does over training: magnitudes, gradients, updates, sinks, entropy and ranks, for every connection.

    attnres dynamics
    attnres dynamics residual block full --seeds 5 --model.layers 24 --model.dim 48
    attnres dynamics residual block:block_size=8 --steps 400 --save-every 50 --out runs/s8

Trains every connection on the same seeds, then profiles each run before its first step and at every --save-every
steps on fixed validation text. The first connection is the baseline. Says of each of the paper's claims (what sublayers
read grows, or is bounded and periodic by block; gradients are even; sinks; the embedding's share) whether the runs show
it, refute it, or do not decide, by a test over paired seeds.

All checkpoints stay on the disk until the runs are profiled (12 MB each at the default size); what remains then is
dynamics.json in every run's folder, and what --keep says. Those of runs that were in OUT already all stay. Stop it with
Ctrl-C or in any other way, and the same command goes on. A run that diverges is kept, marked, and left out of the
means. Ends with tables, OUT/results.html and OUT/figures/; `attnres report RECORD` draws them again from RECORD.
"""

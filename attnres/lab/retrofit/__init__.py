"""Train a plain model to its end, then go on with it and with a connection in it: is a retrofit worth it?

    attnres retrofit
    attnres retrofit residual block block@1 --fractions 0.2 --seeds 5
    attnres retrofit residual full rms-block --model.layers 16 --out runs/retrofit-16

Every seed has a plain model of transformers' layers. Each arm begins with its weights, with the options by which
nothing is lost where it has such (docs/TRANSFORMERS.md), and trains on for a share of its steps; the plain twin does so
without a connection. Each arm and share has learning rates of its own, chosen by the same rule on a seed that is not
reported: the best of a grid, which goes on where the best lies at its edge. All spend the operations of the plain
twin's steps, up to half a step. Runs are evaluated and saved at their start and end alone, whatever --evaluate-every
and --save-every say. Every run has a folder of its own; stop it with Ctrl-C or in any other way, and the same command
goes on; RECORD has the shares that are done. Ends with tables, OUT/results.html and OUT/figures/; `attnres report
RECORD` draws them from RECORD.
"""

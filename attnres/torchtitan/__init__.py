"""Connections inside torchtitan 0.3: a package for its `--module`.

    torchrun --nproc-per-node 8 -m torchtitan.train --module attnres.torchtitan --config llama3_block_debug

torchtitan brings the trainer, the sublayers, FSDP2, tensor parallelism, schedules and checkpoints. From here come the
connection between the sublayers, and what a pipeline sends: each rank gets every part of depth's state once.

docs/torchtitan.md shows how to use it.
"""

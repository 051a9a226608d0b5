"""The lab's experiments, one file each; see attnres/lab/experiment.py."""

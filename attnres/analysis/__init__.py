"""From connections and trained models to arrays and tables."""

from attnres.analysis.mixing import mixing_matrix

__all__ = ["mixing_matrix"]

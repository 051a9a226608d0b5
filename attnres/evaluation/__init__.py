"""Downstream tasks through lm-eval, for the lab's runs and for Hugging Face models."""

from attnres.evaluation.harness import Score, check_model, compare_models, evaluate_model, load_tasks

__all__ = ["Score", "check_model", "compare_models", "evaluate_model", "load_tasks"]

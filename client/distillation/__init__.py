"""Distillation: a smaller or personal student of the model received, on a node's own text."""

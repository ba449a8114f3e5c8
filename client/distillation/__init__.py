"""What a node does with models beside its own: distillation, and cross-model rounds."""

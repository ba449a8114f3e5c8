"""What a node does with models other than its own: distillation, and cross-model rounds."""

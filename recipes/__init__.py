"""Recipes: what a run is, how a recipe file is read, and the ready-made ones."""

"""The coordinator: rounds, the run's records, and who takes part."""

"""The node: private data, training, and using the model that it receives."""

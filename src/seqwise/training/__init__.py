"""Training: schedules, crash-safe checkpoints, and one loop for every model, on the Hugging Face Trainer.

``trainer`` is not imported here: it imports transformers, which takes seconds.
"""

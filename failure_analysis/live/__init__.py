"""A running rollout watched: cheap signals turn by turn, and a failure score with an alarm."""

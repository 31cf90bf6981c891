"""A dataset made like another one, so that both can be mixed or merged."""

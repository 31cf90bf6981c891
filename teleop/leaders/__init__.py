"""Command sources without a leader arm: keyboard, gamepad, scripted motion; force feedback."""

"""Servo buses on the wire: Dynamixel Protocol 2.0 and Feetech STS. Nothing of LeRobot is in here."""

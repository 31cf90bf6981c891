"""Servo buses on the wire: Dynamixel Protocol 2.0 and Feetech STS. No LeRobot in here."""

"""What is connected to this machine and ready for teleoperation; everything here only looks."""

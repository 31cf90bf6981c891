"""LeRobot's robots, teleoperators and cameras as our Follower, Leader and CameraSource."""

from __future__ import annotations

from gaploop.teleop.lerobot_devices.make import make_cameras, make_follower, make_leader

__all__ = ["make_cameras", "make_follower", "make_leader"]

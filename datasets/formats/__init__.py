"""Datasets written anew, episode by episode (`dataset`); LeRobot's older layout (`lerobot_v2`)."""

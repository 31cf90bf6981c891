"""Datasets written anew episode by episode (`dataset`), and LeRobot's older layout (`lerobot_v2`)."""

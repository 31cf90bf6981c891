"""Recordings in other projects' layouts: written from LeRobot v3 datasets, and read into them.

`model` is what all of them share, `dataset` reads a LeRobot dataset and writes one; each layout has
a module of its own, and `registry` knows them by name.
"""

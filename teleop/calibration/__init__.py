"""Calibration: cameras, where they are, how late the arm is, and whether any of it has drifted.

Pure computation and one file; nothing here opens a device. Poses are 4x4 matrices named
`T_a_b`: they take points from frame b to frame a, in metres.
"""

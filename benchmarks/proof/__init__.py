"""Targeted demonstrations against uniform ones: the study of docs/figures/closed_loop_protocol.md.

`design` draws the sites and the order of cells, `arms` says what each arm records, `site` runs
one site's cells and keeps a row of each, `figures` turns rows into the study's figures, `report`
into tables and pictures.
"""

"""What measures gaploop itself; README.md lists it. Nothing in the product imports this."""

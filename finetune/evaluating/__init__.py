"""Parts of `gaploop evaluate`: what is varied, what is kept, what is compared, what is drawn."""

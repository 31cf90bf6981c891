"""A damaged dataset made whole again as far as its bytes allow."""

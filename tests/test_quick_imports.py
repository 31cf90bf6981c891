"""What makes tests' imports quick changes nothing that is imported."""

from __future__ import annotations

import quick_imports


def test_packages_are_found_in_the_same_wheels() -> None:
    assert quick_imports.packages_distributions() == quick_imports.thorough()

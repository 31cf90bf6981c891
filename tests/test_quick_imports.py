"""What makes tests' imports quick changes nothing that is imported."""

from __future__ import annotations

import quick_imports


def test_packages_are_found_in_the_same_wheels() -> None:
    quick, thorough = quick_imports.packages_distributions(), quick_imports.thorough()
    # A wheel that names a package's files one by one may stand there twice.
    assert {name: set(wheels) for name, wheels in quick.items()} == {
        name: set(wheels) for name, wheels in thorough.items()
    }

"""What makes tests' imports quick changes nothing that is imported."""

from __future__ import annotations

import quick_imports


def test_packages_are_found_in_the_same_wheels() -> None:
    quick_imports.packages_distributions.cache_clear()  # setuptools has brought its own since
    quick, thorough = quick_imports.packages_distributions(), quick_imports.thorough()
    # Wheels may stand there twice, and files that a wheel lists and doesn't hold aren't looked for.
    found = {package: set(quick.get(package, ())) for package in thorough}
    assert found == {package: set(wheels) for package, wheels in thorough.items()}

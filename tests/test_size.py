"""The package keeps to its budgets of code lines."""

from __future__ import annotations

import pytest

from devtools import size


def test_what_counts() -> None:
    """Comments, docstrings and blank lines are no code; a text in several lines is."""
    module = '"""A module."""\n\n# why\nx = """\na\n"""\n"""What x is."""\n'
    function = 'def f():\n    """A docstring."""\n    return x\n'
    assert size.code_lines(module + function) == 5


@pytest.mark.parametrize("product", size.PRODUCTS, ids=lambda product: product.name)
def test_a_product_keeps_to_its_budget(product: size.Product) -> None:
    """With a little slack, since a budget is met by design and not by longer lines."""
    assert size.totals()[product.name] <= product.budget * size.SLACK

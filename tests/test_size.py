"""The package keeps to its budgets of code lines."""

from __future__ import annotations

from devtools import size


def test_what_counts() -> None:
    """Comments, docstrings and blank lines are no code; a text in several lines is."""
    module = '"""A module."""\n\n# why\nx = """\na\n"""\n"""What x is."""\n'
    function = 'def f():\n    """A docstring."""\n    return x\n'
    assert size.code_lines(module + function) == 5


def test_each_product_keeps_to_its_budget() -> None:
    """With a little slack, since a budget is met by design and not by longer lines."""
    found = size.totals()
    for product in size.PRODUCTS:
        assert found[product.name] <= product.budget * size.SLACK, product.name

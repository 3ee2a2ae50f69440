"""Work that is done once, with its record in the transaction of the work."""

from ...locks.in_transaction import InTransactionOptions, Step, once_in_transaction, step

__all__ = ["InTransactionOptions", "Step", "once_in_transaction", "step"]

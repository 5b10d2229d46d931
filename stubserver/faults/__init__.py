"""Faults: what goes wrong with a reply on its way out, as the test has set it."""

"""What the tests of the contract suite say of themselves: user properties of their reports, with pytest-xdist too."""

CLAUSE = "stubserver_contract"
"""The clause that a test is."""

DETAIL = "stubserver_contract_detail"
"""How it passed, if not by values."""

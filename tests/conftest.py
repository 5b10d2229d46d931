"""What all tests share: pytester, for the tests of the pytest plugin and of the documentation."""

pytest_plugins = ["pytester"]

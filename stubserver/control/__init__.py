"""The control routes, /stub/*: what a test in any language does to the server that it tests against."""

"""What every server's endpoints share: bodies, dispatch, the state, the start of a generation."""

"""Real servers on tape: recorded through a proxy, kept in a cassette, played back byte for byte."""

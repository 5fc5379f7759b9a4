"""The command line, `turnwise`: what the library does, at a prompt. Importing turnwise does not import it."""

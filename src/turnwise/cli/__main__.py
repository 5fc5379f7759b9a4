"""`python -m turnwise.cli`: the command line where the script is not on the path."""

from turnwise_program import main

if __name__ == "__main__":
    main()

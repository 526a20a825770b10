"""`python -m minipaged` is the command `minipaged`, for an environment whose scripts are not on the path."""

from minipaged.cli import main

main(prog_name="minipaged")

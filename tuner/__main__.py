"""`python -m tuner` is `tune`."""

from tuner.cli import main

try:
    main()
finally:
    # Where an interrupt came inside of text that was executed (dataclasses are made so), Python ends what `-m` started
    # by SIGINT, though it was answered; it forgets that with the next text.
    exec("")

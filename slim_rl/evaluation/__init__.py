"""What an evaluation consists of, and what all studies share."""

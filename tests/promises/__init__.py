"""What the README promises, tried with tools that are not tidy."""

"""What is drawn on a terminal, and what is typed there."""

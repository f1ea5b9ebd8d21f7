"""What a schema asks for, typed as words or at the prompt."""

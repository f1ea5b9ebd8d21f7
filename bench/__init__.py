"""What tasks cost, beside a bare SDK server in the same run: `python -m bench`."""

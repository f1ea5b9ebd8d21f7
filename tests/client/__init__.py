"""Tests of the client side, and the peers, people and processes they have in common."""

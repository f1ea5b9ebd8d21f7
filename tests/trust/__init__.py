"""Tests of who may do what, how much, and what an operator can prove."""

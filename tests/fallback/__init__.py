"""Tests of the answers that clients get which speak no tasks."""

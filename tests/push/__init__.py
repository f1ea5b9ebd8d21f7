"""Tests of `subscriptions/listen` with task ids, frame by frame."""

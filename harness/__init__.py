"""What the tests of the wire share: raw clients, a furnished server, the official schemas."""

"""Chooses settings on held-out anchor queries; costs no pairs."""

"""The protocols of front ends: encoders of a turn's events, without I/O, and readers of what front ends send."""

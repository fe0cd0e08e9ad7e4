"""Measures methods on exact scores: recall, intervals, the scoreboard, its report; and entity linking."""

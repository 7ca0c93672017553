"""Who beats whom, in a game with winners: shares, ratings, and exact solutions where a game has one."""

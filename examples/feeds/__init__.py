"""A feed poller as a user of timerd would write one: a timer a feed, no query by due time, no scheduler of its own."""

"""Web pages on runs: ``seqwise report`` writes one, ``seqwise explore`` serves some. Nothing else imports them."""

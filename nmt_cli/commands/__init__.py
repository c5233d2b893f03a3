"""One file per verb: options in, one call, results out."""

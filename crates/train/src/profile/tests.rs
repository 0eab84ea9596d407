//! A profile made in a moment has all that a good one has.

"""Which Python and which packages a job gets: this one, or one built from its conda file."""

"""`turnwise demo`: the whole life of one chat, on real files and real processes, each claim checked as it is made."""

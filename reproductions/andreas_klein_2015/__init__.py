"""Andreas and Klein (NAACL 2015), when and why are log-linear models self-normalizing?"""

"""Small programs near what a verifier is likely to get wrong, each beside a wrong twin."""

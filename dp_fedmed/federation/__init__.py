"""The federation: who is asked, what is done with the answers, and where it all runs."""

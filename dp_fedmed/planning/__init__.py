"""What a run would spend and how much noise it needs, before it is started."""

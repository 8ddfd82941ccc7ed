"""What a run would spend and suffer, before it is started."""

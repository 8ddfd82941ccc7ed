"""What bounds contributions and adds noise to their sum."""

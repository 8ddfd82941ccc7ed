"""Where the two apps run: worker processes of this machine, Ray, or Flower."""

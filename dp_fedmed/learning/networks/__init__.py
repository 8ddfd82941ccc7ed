"""Networks that are trained: DP-SGD, local steps and the tasks that judge them."""

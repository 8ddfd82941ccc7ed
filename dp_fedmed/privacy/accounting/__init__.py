"""Events, histories and the ε that follows from them."""

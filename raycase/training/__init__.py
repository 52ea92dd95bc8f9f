"""From judgements to a model folder; it knows no Ray: the functions that give vectors and run fits are arguments."""

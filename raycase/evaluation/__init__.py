"""From judgements to figures and a report; the function that gives vectors is an argument."""

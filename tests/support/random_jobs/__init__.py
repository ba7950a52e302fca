"""Random jobs with at most one fault, and what recorders show of them: evidence with known truth.

`programs` makes what each rank calls, `faults` changes one rank, `simulation` executes the programs as a collective
library does, `endings` says what becomes of ranks that wait, `views` makes the match engine's evidence of it, `trials`
puts these together, `explanations` looks for second explanations, and `scoring` compares the verdict with the truth.
`rings` writes a job into real rings, and `paths` judges it from files and live.
"""

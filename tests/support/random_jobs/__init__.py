"""Random jobs and what recorders show of them: evidence with known truth.

`programs` makes what each rank calls. `faults` changes one rank. `simulation` executes the programs as a collective
library does. `endings` decides how the waiting ranks end. `views` makes the evidence for the match engine. `trials`
combines these for one fault, `several_faults` for two or three, `recovery` for a second fault during recovery, and
`healthy` for none. `explanations` looks for second explanations, and `scoring` compares the verdict with the truth.
`rings` writes a job into real rings, and `paths` judges it from files and live.
"""

"""Advice for launchers: what to do next with a job that failed, from its incidents (docs/guide/fault-tolerance.md).

`facts` extracts from incidents what the rules need. `rules` is the table of rules, which are pure functions. `answer`
finds the incidents of a run and applies the rules.
"""

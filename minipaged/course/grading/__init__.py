"""Grades that can be trusted: a submission runs alone in a sandbox, and everything else stays outside.

Reading order: `wire.py` (what may pass between the two processes) → `subject.py` (the sandbox's side: runs
the submission, answers calls) → `remote.py` (the tests' side: a layer that lives in another process) →
`examiner.py` (the process with the tests) → `limits.py` and `sandbox.py` (what both may use, and what the
operating system keeps them from) → `warden.py` (starts both, trusts neither) → `package_view.py` (the package
without the answers) → `submission.py` (what a student, or a class, handed in) → `grade.py` (one submission,
graded) → `results.py` (Gradescope, JUnit) → `class_run.py` (a whole class) → `handout.py` (what students and
Gradescope get).

The same test bodies serve `minipaged check` and `minipaged grade`; only the fixture `layer` differs.
"""

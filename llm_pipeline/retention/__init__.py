"""Retention: what a store keeps, and how the rest is removed safely.

A **root** is a pointer (production and previous, of every model and target) or a release that is kept: it is on its
way, among the newest of its config, or young. A kept release keeps its record, its results, their artifacts and its
datasets; all else goes. `plan_retention` decides that, a pure function of a `StoreState`; `collect_garbage` does it.

**Nothing goes on a guess.** Whatever cannot be listed, read or understood ends a run before it removes anything. So
does a plan that takes more than `max_deleted_share` of the artifacts or of their bytes, for faults that no error tells.

**How things go.** Only one run removes at a time (a lease). In each run, in this order:

1. The documents of releases that go, the record first: without it, what is left is no release, and the next run goes
   on. A record that was written again since the state was read stays.
2. Stage records that go, each under its own lease, so nobody computes under it: from here on nobody can reuse what
   they name.
3. The state is read again. Artifacts that no root reaches are *condemned*; those of use again are pardoned.
4. Artifacts condemned for longer than the grace period, and still unreachable, are removed, marker first.

**Who runs meanwhile loses nothing.** A run comes by an artifact in one of three ways:

- Through a kept document: the artifact is reachable.
- Through a stage record, which it reads before step 2. It has one grace period to write its own result, which makes
  the artifact reachable: the removal is a later run's, and reads the roots again.
- By publishing the same bytes again: `store/pending_deletion.py` says how both agree.

Killed anywhere, the next run goes on: a removal that has begun is written down before the first byte goes. What is
left to chance: a retention process that is frozen, for longer than its lease lasts, between two adjacent calls.
"""

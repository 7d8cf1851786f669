"""The acts on production: one function each, for every caller.

| act | function | asked for by |
|---|---|---|
| promote | `upkeep.promote` | the stage `settle` |
| roll back | `rollback.roll_back`, `force`, `carry_on` | command line, rollback DAG, guard, `stop` |
| end a run's canary | `rollback.ensure_rolled_back` | the stage `rollback`: teardown of DAG and local run |
| approve production | `decisions.decide` | command line, approval task, terminal of a local run |
| answer a step's question | `canary.people.answer` | command line, approval task, terminal of a local run |
| pause, resume | `canary.people.pause`, `resume` | command line |
| start | `switching.start` | command line, demo, the canary of what serves already |
| stop | `switching.stop`, `stop_all`, `end_here` | command line; the end of the demo |
| replace | `upkeep.replace_holders` | `run --replace`, the form of the release's DAG |
| stage by hand, end staging | `switching.start_staging`, `stop_staging` | command line |
| keep serving, settle, have a standby, retire it | `upkeep.keep` | the guard |

Only these modules and the canary's own controller write routes, slots and the documents of places: an import
contract of `make lint` and `tests/operations/test_walls.py` say so. They act under the lease of the place
(`served_place.acting`) and with a fencing token above all that were seen there (`token_of`): of two who act at once
one is refused, and asking twice is safe. A rollback does not wait: it takes the lease over. A person's answer, a
pause and a replacement move nothing by themselves: they are edits of the place's document, by compare-and-swap.
"""

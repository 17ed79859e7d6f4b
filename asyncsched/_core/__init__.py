"""The scheduler as a state machine. These words have one meaning each, here and in the rooms above.

task        one unit of work: an operation or a call on its way to a result
value       a result, there or to come; whoever refers to it holds it
plan        what is known of a task before it runs, shared by tasks that are alike
quick       may run on the event loop's thread, since a hop to a stream takes longer
claim       a task without a body, which only takes bytes
cost        bytes that a task is charged when it is admitted: output and workspace
refund      what of them it gives back when it ends, since its result did not keep them
lane        the scheduler's view of one stream of a device
hop         what it takes until a stream that is idle, or waits for another, begins
backlog     all pending tasks
queue       the pending tasks of one scope, in the order in which they are admitted
admit       give a task its slot and its bytes, in one step
launch      put an admitted task on a lane
ledger      all counts and bytes of a scheduler
account     a limit in bytes and what is charged against it
earmark     a head that waited long, for which an account keeps what comes free
stuck       lacks bytes that nothing in flight will free
settled     has an answer for whoever awaits it, though its body may still run
dependent   a task that reads what another makes
commit      a group of tasks whose values move together, or not at all
completion  word from a stream that a task ended; a drop is word that a result is held no more
notice      what ended or was admitted, to be told to those who wait for it
interrupted left in the middle of a change by an exception; then all is abandoned
put off     asked for by a finaliser in the middle of a change, done when that is whole
escaped     may be held outside the scheduler: its buffer is never recycled
growth      a claim that adds to a reserve, in a scope of its own beside the one that grows
preempted   told to give its reserve back, so that others grow
"""

"""The scheduler as a state machine. Each of these words has one meaning, here and in the rooms above.

task        one unit of work: an operation or a call that will have a result
value       a result, present or still to come
holder      an unfinished task or a lease that may still read a value; it has an entry in the value's list
lease       an object that holds a value for somebody outside the engine; a handle is one
plan        the facts about a task that are known before it runs; similar tasks share one
quick       short enough to run on the event loop's thread: a hop to a stream would take longer
claim       a task without a body, which only takes bytes
cost        the bytes a task is charged at admission: output and workspace
refund      the part of the cost that comes back when the task ends: its result did not keep it
lane        the scheduler's view of one stream of a device
hop         the time that a stream needs to begin a task, when it is idle or waits for another stream
backlog     all pending tasks
queue       the pending tasks of one scope, in the order of admission
admit       give a task its slot and its bytes, in one step
launch      put an admitted task on a lane
ledger      all counts and bytes of a scheduler
account     a limit in bytes, with the bytes charged against it
earmark     the head of a queue that waited long: its account keeps freed bytes for it
stuck       short of bytes that no task in flight will free
settled     has an answer for its waiters, though its body may still run
dependent   a task that reads the result of another
commit      a group of tasks whose values all move to their next version, or none does
completion  a stream's report that a task ended; a drop is the report that nobody holds a result any more
notice      a task or job that was admitted or ended, and whose waiters must be called
interrupted left in the middle of a change by an exception; then everything is abandoned
put off     requested by a finaliser in the middle of a change, and done when that change is whole
escaped     possibly held outside the scheduler: its buffer is never recycled
growth      a claim that adds to a scope's reserve; it waits in a scope of its own beside that one
preempted   told to give its reserve back, so that others can grow
"""

"""`python -m asyncsched gpu-check`: all that one run can learn of a card, in one file.

Theory of operation. A user who has a card for an hour runs this once, and sends the file back. So a failure must not
cost later programs, or results from before:

1. Each program runs in a process of its own. A lasting error of CUDA (an illegal address), a crash or a hang concerns
   only that program.
2. A process that exceeds its time is asked for its tracebacks, by SIGABRT (see `faulthandler`), and killed.
3. The file is written before and after each program, and put in its place when it is whole. It has the state of each
   program. If this command or the machine ends, the program that ran then is in the file as crashed.
4. The first program looks whether there is a card. If not, the file says once what is missing.

This process never touches CUDA.
"""

"""`python -m asyncsched gpu-check`: all there is to learn of a card in one run, in one file.

Theory of operation. Who has a card for an hour runs this once, and sends the file back. So nothing that goes wrong may
cost what comes after it, or what was found before:

1. Each program runs in a process of its own. An error that stays in a process that uses CUDA (an illegal address), a
   crash, or what never ends concerns that program alone.
2. A process that is not through in its time is asked for its tracebacks, by SIGABRT (see `faulthandler`), and killed.
3. The file is written before and after each program, and put in its place when it is whole. It says of each what it is
   now: whatever ends this command, down to the machine, what ran then stands there as crashed.
4. The first program looks whether there is a card at all. If not, what is missing is said once.

This process never touches CUDA.
"""

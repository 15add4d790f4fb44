"""How long after work of higher priority begins a program of lower priority may still launch, in all checks and measurements."""

# The order has to reach the program: the service and then the program's thread need a processor. The service's decision takes less than
# 0.1 ms on an idle machine (bench/README.md). On the stand-ins the simulated device, both programs and the service share the processors, and a
# thread that becomes ready waits until the kernel preempts another one: at most a time slice, 4 ms with Linux's tick of 250 Hz.
REACTION_NS = 5_000_000

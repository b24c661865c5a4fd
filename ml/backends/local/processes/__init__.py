"""The processes of a run: started together, ended together, interrupted, preempted.

    ml run | ml runs resume     the executor: polls one `Task` (command, sweep or pipeline)
    ├── Reaper                  one; a separate session
    ├── ForkServer              up to `pool.MOST`, by `Pool`; a session each
    │   └── Forked              one trial that is plain Python; a session each
    └── Shell                   any other command: `bash -c`; a session each
        ├── Ranks               a distributed job: replaces the shell by `exec`
        │   └── rank            one per process of the job, in the session of Ranks
        └── batches             a parallel job: replaces the shell by `exec`
            └── batch_worker    in the session of batches

`LocalBackend.run` owns the Reaper and the Pool. The Pool owns the forkservers. A command's
`Execution` owns its `RunProcess`: a Shell or a Forked. `SpotProcess` wraps one and starts it again
after a simulated preemption. `Session` is not a process: it is the context of a command.

The executor registers each forkserver, run and environment build with the Reaper until it has
ended. If the executor is killed by SIGKILL, the Reaper survives: it sends SIGTERM and, after
`GRACE_S`, SIGKILL to all registered processes, then it exits. A forkserver also exits when its
socket closes. The next `ml run` closes the abandoned run (`lifecycle.close_abandoned`).

Servers of endpoints and their routers are not registered: they survive the command that started
them until they are stopped (`ml.backends.local.serving.processes`).
"""

//! Examples of each command, for `--help`, the man pages and docs/commands.md.

/// A command line, and what it does.
pub(crate) type Example = (&'static str, &'static str);

/// The examples of `xsched bench`.
const BENCH: &[Example] = &[
    (
        "xsched bench corun -- python serve.py -- python train.py",
        "Measure two programs alone, together, and together under XSched",
    ),
    (
        "xsched bench corun --platform simulated --seconds 2 --report corun",
        "Measure built-in loads and write a page with plots",
    ),
    ("xsched bench overhead", "Measure what XSched costs a program that is alone on its device"),
    (
        "xsched bench preempt --length-us 500,5000",
        "Measure how soon a program of high priority runs, by level and length of the other's kernels",
    ),
    ("xsched bench share --shares 60,30,10", "Compare requested shares with those measured"),
    ("xsched bench scale --programs 1,2,4,8", "Measure requests beside 0, 1, 3 and 7 busy programs"),
    (
        "xsched bench verify -- python inference.py --once",
        "Check that a program prints the same results with and without XSched",
    ),
    ("xsched bench service --clients 64", "Measure the decision latency with 64 processes"),
];

/// The examples of a command, by its name; those of the program itself have the name `xsched`.
pub(crate) fn examples(command: &str) -> &'static [Example] {
    match command {
        "xsched" => &[
            ("xsched run --priority high -- python serve.py", "Run a service with high priority"),
            ("xsched run --priority low -- python train.py", "Run a training that uses the idle time"),
            ("xsched top", "Watch both"),
        ],
        "run" => &[
            ("xsched run --priority high -- python serve.py", "Preempt tasks of lower priority"),
            ("xsched run --share 40% --name team-a -- python train.py", "Request 40 % of the device's time"),
            (
                "xsched run --deadline 5ms -- ./controller",
                "Complete work 5 ms after it arrives, if the policy is deadline",
            ),
            (
                "xsched run --job training -- python rank.py",
                "Hold and resume the processes of a job together",
            ),
        ],
        "serve" => &[
            ("xsched serve --policy share", "Run a service with the policy share"),
            ("xsched serve --replace", "Replace the running service, also one that hangs"),
            ("xsched serve --metrics 127.0.0.1:9400", "Also serve metrics for Prometheus"),
        ],
        "park" => {
            &[("xsched park trainer", "Give the device memory of the programs named trainer to others")]
        }
        "unpark" => &[("xsched unpark trainer", "Bring it back; the programs run when it is there")],
        "stop" => &[("xsched stop", "Shut the service down; scheduled programs continue unscheduled")],
        "ps" => &[
            ("xsched ps", "List the tasks"),
            ("xsched ps --json | jq '.tasks[].name'", "Print the names of the tasks"),
        ],
        "top" => &[("xsched top", "Watch the tasks"), ("xsched top --once", "Print one frame and exit")],
        "dashboard" => &[
            ("xsched dashboard", "Open the dashboard in a browser"),
            ("xsched dashboard --port 8080 --no-open", "Serve it at a fixed port, for a tunnel through ssh"),
        ],
        "set" => &[
            ("xsched set 4711 --priority low", "Lower the priority of process 4711"),
            ("xsched set trainer --share 20%", "Change the share of the program named trainer"),
        ],
        "suspend" => &[
            ("xsched suspend trainer", "Hold the launches of the program named trainer"),
            (
                "xsched suspend --grant slurm-123",
                "Suspend the processes of a grant, also those that start later",
            ),
        ],
        "resume" => &[("xsched resume --grant slurm-123", "Resume the processes of a grant")],
        "grant" => &[
            (
                "xsched grant slurm-123 --cgroup /slurm/uid_1000/job_123 --priority high --share 40",
                "Allow priority 100 and a share of 40 % to the processes of a control group",
            ),
            (
                "xsched grant service --token /etc/xsched/service-token --priority high",
                "The same for processes with the token in XSCHED_GRANT",
            ),
        ],
        "grants" => &[("xsched grants", "List the grants")],
        "revoke" => &[("xsched revoke slurm-123", "End a grant")],
        "policy" => &[
            ("xsched policy", "List the policies, and show which one is in force"),
            ("xsched policy fair", "Change the policy"),
        ],
        "trace" => &[("xsched trace -o trace.json --duration 10s", "Record 10 seconds for Perfetto")],
        "doctor" => &[
            ("xsched doctor", "Report what works on this machine"),
            ("xsched doctor --fix", "Print the commands that the report recommends"),
        ],
        "config" => &[
            ("xsched config init", "Write a commented configuration file"),
            ("xsched config check", "Report its errors"),
        ],
        "demo" => &[
            ("xsched demo", "Demonstrate XSched and write xsched-demo.html"),
            ("xsched demo --level 1 --json", "Measure level 1 and print the result as JSON"),
        ],
        "simulate" => &[
            ("xsched simulate examples/simulations/three-shares.toml --policy share", "Simulate a policy"),
            (
                "xsched simulate --trace examples/simulations/jobs.csv --report cluster.html",
                "Find how many GPUs the jobs of a trace need",
            ),
            ("xsched simulate --generate-trace jobs.csv --jobs 10000 --seed 1", "Write a synthetic trace"),
        ],
        "bench" => BENCH,
        _ => &[],
    }
}

/// The section of `--help`; none for a command without examples.
pub(crate) fn help_section(command: &str) -> Option<String> {
    let examples = examples(command);
    let lines = examples.iter().map(|(line, what)| format!("  {line}\n          {what}"));
    (!examples.is_empty()).then(|| format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_valid_examples() {
        for command in crate::cli::definition().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert!(!examples(name).is_empty(), "{name} has no examples");
            for (line, _) in examples(name) {
                let words = line.split(" | ").next().unwrap().split_whitespace();
                let parsed = crate::cli::definition().try_get_matches_from(words);
                let parsed = parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
                assert_eq!(parsed.subcommand_name(), Some(name), "{line}");
            }
        }
    }
}

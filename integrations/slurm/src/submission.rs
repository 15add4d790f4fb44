//! Where a job will run, as far as `srun`, `sbatch` and `salloc` know it when they have read their options.

use crate::rules::Place;

/// Partition and QOS from the command line, else from the environment. What is not there is not known: a script's `#SBATCH` lines,
/// the cluster's default.
pub(crate) fn place(arguments: &[String], get: impl Fn(&str) -> Option<String>) -> Place {
    // `srun` in an allocation: the job exists already.
    let partition_of_job = get("SLURM_JOB_PARTITION").filter(|_| get("SLURM_JOB_ID").is_some());
    let program = arguments.first().map_or("", |path| path.rsplit('/').next().unwrap_or(""));
    let prefix = match program {
        "sbatch" => "SBATCH_",
        "salloc" => "SALLOC_",
        _ => "SLURM_",
    };
    let from = |short: &str, long: &str, variable: &str| {
        option(arguments, short, long).or_else(|| get(&format!("{prefix}{variable}")))
    };
    let partition = partition_of_job.or_else(|| from("-p", "--partition", "PARTITION"));
    // Slurm chooses one of several.
    Place { partition: partition.filter(|name| !name.contains(',')), qos: from("-q", "--qos", "QOS") }
}

/// The value of an option that stands before the program or script of the command line.
fn option(arguments: &[String], short: &str, long: &str) -> Option<String> {
    let mut rest = arguments.iter().skip(1);
    let mut may_be_value = false;
    while let Some(argument) = rest.next() {
        if argument == short || argument == long {
            return rest.next().cloned();
        }
        if let Some(value) = argument.strip_prefix(long).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value.to_owned());
        }
        if let Some(value) = argument.strip_prefix(short).filter(|_| !argument.starts_with("--")) {
            return Some(value.to_owned());
        }
        if !argument.starts_with('-') && !may_be_value {
            // The program; its own options follow.
            return None;
        }
        // The plugin does not know which of Slurm's options have a value.
        may_be_value = argument.starts_with('-') && !argument.contains('=');
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str, variables: &[(&str, &str)]) -> (Option<String>, Option<String>) {
        let arguments: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let place = place(&arguments, get);
        (place.partition, place.qos)
    }

    #[test]
    fn place_is_found_where_it_is_given() {
        let debug = Some("debug".to_owned());
        for line in [
            "sbatch -p debug a.sh",
            "sbatch -pdebug a.sh",
            "salloc --partition=debug",
            "srun -n 2 --partition debug a",
        ] {
            assert_eq!(of(line, &[]).0, debug, "{line}");
        }
        assert_eq!(of("/usr/bin/sbatch a.sh", &[("SBATCH_PARTITION", "debug")]).0, debug);
        assert_eq!(
            of("srun -q high a", &[("SLURM_PARTITION", "debug")]),
            (debug.clone(), Some("high".to_owned()))
        );
        assert_eq!(of("srun a", &[("SLURM_JOB_ID", "7"), ("SLURM_JOB_PARTITION", "debug")]).0, debug);
    }

    #[test]
    fn options_of_the_program_and_lists_are_not_taken() {
        assert_eq!(of("srun program -p debug", &[]), (None, None));
        assert_eq!(of("sbatch -p debug,gold a.sh", &[]), (None, None));
        assert_eq!(of("sbatch a.sh", &[("SLURM_PARTITION", "debug")]), (None, None));
    }
}

//! One file per subcommand. Each has an `Args` that clap fills and a `run` that does the work.

pub(crate) mod demo;
pub(crate) mod simulate;

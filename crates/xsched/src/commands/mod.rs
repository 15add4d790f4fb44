//! One file per subcommand. Each has an `Args` that clap fills and a `run` that does the work.

pub(crate) mod bench;
pub(crate) mod complete;
pub(crate) mod config;
pub(crate) mod dashboard;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod grant;
pub(crate) mod grants;
pub(crate) mod manual;
pub(crate) mod park;
pub(crate) mod policy;
pub(crate) mod ps;
pub(crate) mod revoke;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod set;
pub(crate) mod simulate;
pub(crate) mod stop;
pub(crate) mod suspend;
pub(crate) mod top;
pub(crate) mod trace;

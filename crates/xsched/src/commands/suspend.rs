//! `xsched suspend` and `xsched resume`: hold and resume the processes of a grant or of a program.

use std::io::{self, Write as _};

use anyhow::Context as _;
use xsched_ipc::protocol::{Request, Target};

use crate::term;
use crate::tool::ToolConnection;

/// Suspend a running program, or all processes of a grant.
///
/// Their launches are held until they are resumed. Processes of a suspended grant are suspended also if they start later.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

/// Resume a program or a grant after `xsched suspend`.
///
/// A process runs when neither it nor its grant is suspended.
#[derive(clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct TargetArgs {
    /// The process ID, or the name of all programs to change.
    #[arg(value_name = "PID|NAME")]
    program: Option<String>,

    /// The processes of this grant.
    #[arg(long, value_name = "NAME")]
    grant: Option<String>,
}

impl TargetArgs {
    fn request(&self, is_suspended: bool) -> anyhow::Result<()> {
        let tool = ToolConnection::connect()?;
        let (request, what) = match (&self.grant, &self.program) {
            (Some(name), _) => (
                Request::SuspendGrant { name: name.clone(), is_suspended },
                format!("grant {}", term::printable(name)),
            ),
            (None, program) => {
                let text = program.clone().unwrap_or_default();
                let target = text.parse().map_or_else(|_| Target::Name(text.clone()), Target::Pid);
                let request = if is_suspended { Request::Suspend(target) } else { Request::Resume(target) };
                (request, term::printable(&text))
            }
        };
        tool.request(&request).with_context(|| format!("{what} was not changed"))?;
        writeln!(io::stdout(), "{what}: {}", if is_suspended { "suspended" } else { "resumed" })?;
        Ok(())
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.target.request(true)
}

pub(crate) fn run_resume(args: &ResumeArgs) -> anyhow::Result<()> {
    args.target.request(false)
}

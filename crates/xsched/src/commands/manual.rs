//! `xsched manual`: man pages, shell completions and docs/commands.md, from the same source as `--help`.

mod completions;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Arg, Command};

use crate::{cli, compat, examples};

/// Write man pages and shell completions, or print docs/commands.md.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory to write to: man1/*.1, and completions/bash, zsh and fish.
    #[arg(required_unless_present = "markdown")]
    directory: Option<PathBuf>,

    /// Print docs/commands.md.
    #[arg(long, conflicts_with = "directory")]
    markdown: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let program = without_hidden(&cli::definition()).name("xsched");
    match &args.directory {
        Some(directory) => {
            write_pages(&program, &directory.join("man1"))?;
            completions::write(program, &directory.join("completions"))
        }
        None => Ok(io::stdout().lock().write_all(page(program).as_bytes())?),
    }
}

/// The same command without hidden arguments and subcommands.
fn without_hidden(command: &Command) -> Command {
    let mut visible = Command::new(command.get_name().to_owned())
        .arg_required_else_help(command.is_arg_required_else_help_set())
        .subcommand_required(command.is_subcommand_required_set())
        .args(command.get_arguments().filter(|argument| !argument.is_hide_set()))
        .groups(command.get_groups())
        .subcommands(command.get_subcommands().filter(|command| !command.is_hide_set()).map(without_hidden));
    if let Some(about) = command.get_about() {
        visible = visible.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        visible = visible.long_about(about.clone());
    }
    match command.get_version() {
        Some(version) => visible.version(version.to_owned()),
        None => visible,
    }
}

fn create(directory: &Path, name: &str) -> anyhow::Result<File> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let path = directory.join(name);
    File::create(&path).with_context(|| format!("cannot write {}", path.display()))
}

/// A page for the program, for each of its commands, and for the two programs of the original C++ XSched.
fn write_pages(program: &Command, directory: &Path) -> anyhow::Result<()> {
    let commands = program.get_subcommands().map(|command| {
        let name = format!("xsched-{}", command.get_name());
        command.clone().name(name.clone()).bin_name(name.replacen('-', " ", 1)).display_name(name)
    });
    let pages: Vec<_> =
        std::iter::once(program.clone()).chain(commands).chain(compat::definitions()).collect();
    let names: Vec<_> = pages
        .iter()
        .map(|page| page.get_display_name().unwrap_or_else(|| page.get_name()).to_owned())
        .collect();
    for (command, name) in pages.into_iter().zip(&names) {
        let mut command = command.version(env!("CARGO_PKG_VERSION"));
        // Derives the usage line.
        command.build();
        let mut file = create(directory, &format!("{name}.1"))?;
        clap_mangen::Man::new(command).date("").render(&mut file)?;
        file.write_all(last_sections(name, &names).as_bytes())?;
    }
    Ok(())
}

/// The sections EXAMPLES and SEE ALSO of a page.
fn last_sections(page: &str, pages: &[String]) -> String {
    let escaped = |text: &str| text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let mut text = String::new();
    let examples = examples::examples(page.strip_prefix("xsched-").unwrap_or(page));
    if !examples.is_empty() {
        text.push_str(".SH EXAMPLES\n");
    }
    for (line, what) in examples {
        let _ = write!(text, ".TP\n{}\n.nf\n{}\n.fi\n", escaped(what), escaped(line));
    }
    let others = pages.iter().filter(|other| *other != page);
    let others: Vec<_> = others.map(|other| format!(".BR {} (1)", escaped(other))).collect();
    let _ = writeln!(text, ".SH \"SEE ALSO\"\n{}", others.join(",\n"));
    text
}

/// The text of docs/commands.md.
fn page(mut program: Command) -> String {
    let mut text = String::from(
        "# Commands\n\n<!-- written by `xsched manual --markdown` -->\n\nAfter this page you can use every command and \
         option of `xsched`. It is the output of `--help` on one page. The man pages and the shell completions come from the \
         same source.\n",
    );
    program.build();
    for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
        describe(command, &format!("xsched {}", command.get_name()), 2, &mut text);
    }
    for mut command in compat::definitions() {
        command.build();
        describe(&command, command.get_name(), 2, &mut text);
    }
    text
}

fn describe(command: &Command, name: &str, depth: usize, text: &mut String) {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    // Writing to a string does not fail.
    let _ = write!(text, "\n{} {name}\n\n{}\n\n```\n{usage}\n```\n", "#".repeat(depth), about.trim());
    let shown = |argument: &&Arg| {
        !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
    };
    let arguments: Vec<_> = command.get_arguments().filter(shown).collect();
    if !arguments.is_empty() {
        text.push_str("\n| | |\n|---|---|\n");
    }
    for argument in arguments {
        let _ = writeln!(text, "| `{}` | {} |", cell(&syntax(argument)), cell(&help(argument)));
    }
    let examples = if depth == 2 { examples::examples(command.get_name()) } else { &[] };
    if !examples.is_empty() {
        let lines: Vec<_> = examples.iter().map(|(line, what)| format!("# {what}\n{line}")).collect();
        let _ = write!(text, "\n```text\n{}\n```\n", lines.join("\n"));
    }
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set())
    {
        describe(inner, &format!("{name} {}", inner.get_name()), depth + 1, text);
    }
}

/// The argument as typed: `-p, --priority <N>`.
fn syntax(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let flags: Vec<_> = short.into_iter().chain(long).collect();
    let values = argument.get_value_names().unwrap_or_default().iter().map(|name| format!("<{name}>"));
    let values: Vec<_> = if argument.get_action().takes_values() { values.collect() } else { Vec::new() };
    [flags.join(", "), values.join(" ")]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn help(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let default: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let sentence = help.trim().trim_end_matches('.');
    if default.is_empty() || !argument.get_action().takes_values() {
        return format!("{sentence}.");
    }
    format!("{sentence}. Default: `{}`.", default.join(", "))
}

/// Text for one cell of a Markdown table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

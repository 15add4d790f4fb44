//! Shell completions. Values that depend on what runs are asked for at the time: `xsched complete programs`.

use std::io::Write as _;
use std::path::Path;

use clap::{Command, ValueHint};
use clap_complete::Shell;
use xsched_policy::POLICIES;

/// What the shells would complete for these hints. Each marks the places of one kind of running things in zsh's completions.
const PROGRAMS: (ValueHint, &str) = (ValueHint::Hostname, ":_hosts'");
const GRANTS: (ValueHint, &str) = (ValueHint::Username, ":_users'");

/// After bash's completions: names of programs and grants are completed first, and in place of files.
const BASH: &str = r#"
_xsched_running() {
    local kind=""
    if [[ ${COMP_WORDS[COMP_CWORD-1]} == --grant || ${COMP_WORDS[1]} == revoke ]]; then
        kind=grants
    elif [[ $COMP_CWORD -eq 2 && ${COMP_WORDS[1]} =~ ^(set|suspend|resume)$ ]]; then
        kind=programs
    fi
    if [[ -n $kind && ${COMP_WORDS[COMP_CWORD]} != -* ]]; then
        local name
        compopt +o default +o bashdefault
        while IFS= read -r name; do
            [[ $name == "${COMP_WORDS[COMP_CWORD]}"* ]] && COMPREPLY+=("$(printf %q "$name")")
        done < <("${COMP_WORDS[0]}" complete "$kind" 2>/dev/null)
        [[ ${#COMPREPLY[@]} -gt 0 ]] && return
    fi
    _xsched "$@"
}
complete -F _xsched_running -o bashdefault -o default xsched
"#;

/// Before zsh's completions, after the line that names their command.
const ZSH: &str = r#"
_xsched_running() {
    local -a names
    names=("${(@f)$(_call_program $1 xsched complete $1 2>/dev/null)}")
    compadd -a names
}
_xsched_programs() { _xsched_running programs }
_xsched_grants() { _xsched_running grants }
"#;

/// Writes the completions of bash, zsh and fish.
pub(super) fn write(program: Command, directory: &Path) -> anyhow::Result<()> {
    let mut program = with_values(program);
    for (shell, name) in [(Shell::Bash, "xsched"), (Shell::Zsh, "_xsched"), (Shell::Fish, "xsched.fish")] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut program, "xsched", &mut text);
        let mut text = String::from_utf8(text)?;
        match shell {
            Shell::Bash => text.push_str(BASH),
            Shell::Zsh => text = zsh(&text),
            _ => text.push_str(&fish()),
        }
        super::create(&directory.join(shell.to_string()), name)?.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn zsh(text: &str) -> String {
    let text = text.replace(PROGRAMS.1, ":_xsched_programs'").replace(GRANTS.1, ":_xsched_grants'");
    match text.split_once('\n') {
        Some((command, rest)) => format!("{command}\n{ZSH}{rest}"),
        None => text,
    }
}

/// The generated completions of fish have no positional arguments.
fn fish() -> String {
    let policies: Vec<_> = POLICIES.iter().map(|policy| policy.plain).collect();
    let programs = "(xsched complete programs 2>/dev/null)";
    [
        ("set", programs),
        ("suspend", programs),
        ("resume", programs),
        ("revoke", "(xsched complete grants 2>/dev/null)"),
        ("policy", &policies.join(" ")),
    ]
    .map(|(command, values)| {
        format!("complete -c xsched -n \"__fish_xsched_using_subcommand {command}\" -f -a \"{values}\"\n")
    })
    .concat()
}

/// The same command with the names of values that completions suggest. The program accepts further values.
fn with_values(command: Command) -> Command {
    let policies: Vec<_> = POLICIES.iter().map(|policy| policy.plain).collect();
    let name = command.get_name().to_owned();
    command
        .mut_args(|argument| match (argument.get_id().as_str(), name.as_str()) {
            ("priority", _) => argument.value_parser(["low", "normal", "high"]),
            ("level", "simulate") => argument.value_parser(["1", "2", "3"]),
            ("level", _) => argument.value_parser(["auto", "1", "2", "3"]),
            ("policy", _) | ("name", "policy") => argument.value_parser(policies.clone()),
            ("target", "set") | ("program", "suspend" | "resume") => argument.value_hint(PROGRAMS.0),
            ("name", "revoke") | ("grant", "suspend" | "resume") => argument.value_hint(GRANTS.0),
            _ => argument,
        })
        .mut_subcommands(with_values)
}

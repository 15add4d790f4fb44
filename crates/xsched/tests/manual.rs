//! Man pages, completions and docs/commands.md are generated from the source of `--help`.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use assert_cmd::Command;

fn xsched(arguments: &[&str]) -> String {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xsched"));
    let output = command.args(arguments).assert().success().get_output().stdout.clone();
    String::from_utf8(output).unwrap()
}

/// The commands that `--help` lists.
fn commands() -> BTreeSet<String> {
    let help = xsched(&["--help"]);
    let list = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    list.lines()
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn commands_page_is_up_to_date() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let written = std::fs::read_to_string(page).unwrap();
    assert!(
        written == xsched(&["manual", "--markdown"]),
        "docs/commands.md is out of date: cargo run -- manual --markdown > docs/commands.md"
    );
}

#[test]
fn every_public_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    xsched(&["manual", directory.path().to_str().unwrap()]);
    let entries = std::fs::read_dir(directory.path().join("man1")).unwrap();
    let pages: BTreeSet<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let mut expected: BTreeSet<_> = commands().iter().map(|name| format!("xsched-{name}.1")).collect();
    assert!(expected.len() >= 10, "{expected:?}");
    expected.extend(["xsched.1", "xserver.1", "xcli.1"].map(str::to_owned));
    assert_eq!(pages, expected);
    let run = std::fs::read_to_string(directory.path().join("man1/xsched-run.1")).unwrap();
    assert!(
        run.contains("xsched run") && run.contains("priority") && run.contains("125 if xsched itself"),
        "{run}"
    );
    assert!(run.contains(".SH EXAMPLES") && run.contains(".BR xsched\\-top (1)"), "{run}");
}

#[test]
fn completions_list_every_public_command() {
    let directory = tempfile::tempdir().unwrap();
    xsched(&["manual", directory.path().to_str().unwrap()]);
    for file in ["bash/xsched", "zsh/_xsched", "fish/xsched.fish"] {
        let text = std::fs::read_to_string(directory.path().join("completions").join(file)).unwrap();
        for name in commands() {
            assert!(text.contains(&name), "{file}: {name}");
        }
        assert!(!text.contains("demo-worker"), "{file}");
        for value in ["share-process", "normal", "auto"] {
            assert!(text.contains(value), "{file}: the value {value}");
        }
    }
}

/// What bash completes for the last word of a line.
fn completed_by_bash(completions: &Path, line: &[&str]) -> Vec<String> {
    let script = r#"
        compopt() { :; }
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _xsched_running "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output =
        Command::new("bash").args(["-c", script, "bash"]).arg(completions).args(line).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_the_names_of_running_programs_and_grants() {
    let directory = tempfile::tempdir().unwrap();
    xsched(&["manual", directory.path().to_str().unwrap()]);
    let completions = directory.path().join("completions/bash/xsched");
    let program = directory.path().join("xsched");
    std::fs::write(&program, "#!/bin/sh\necho \"$2-one\"; echo 'two words'\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let program = program.to_str().unwrap();
    for (words, expected) in [
        (&["set", ""][..], &["programs-one", "two\\ words"][..]),
        (&["suspend", "pr"], &["programs-one"]),
        (&["suspend", "--grant", "gr"], &["grants-one"]),
        (&["revoke", "tw"], &["two\\ words"]),
        (&["policy", "prio"], &["priority", "priority-all"]),
        (&["set", "train", "--priority", ""], &["low", "normal", "high"]),
    ] {
        let line = [&[program], words].concat();
        assert_eq!(completed_by_bash(&completions, &line), expected, "{words:?}");
    }
}

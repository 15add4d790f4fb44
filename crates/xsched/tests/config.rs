//! `xsched config` on files with and without mistakes.

use assert_cmd::Command;
use predicates::prelude::*;

fn config(what: &str, text: &str) -> assert_cmd::assert::Assert {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    std::fs::write(&file, text).unwrap();
    Command::new(assert_cmd::cargo::cargo_bin!("xsched")).args(["config", what]).arg(&file).assert()
}

#[test]
fn every_mistake_is_reported_with_its_position() {
    for (text, position) in [
        ("[defaults]\npolicy = \"best\"", ":2:10: policy: unknown policy `best`: use one of priority (HPF)"),
        (
            "[defaults]\n\ntimeslice_us = 5",
            ":3:16: timeslice_us: timeslice 5 is out of range: allowed is 100 to",
        ),
        ("[defaults]\nk = 0", ":2:5: k: 0 is out of range: allowed is 1 and more"),
        ("[limits]\nmax_priority = \"urgent\"", ":2:16: max_priority: priority `urgent` is out of range"),
        (
            "[limits]\nmax_prio = 5",
            ":2:1: max_prio: unknown field `max_prio`, expected one of `max_priority`",
        ),
        ("[limits]\nmax_share = \"all\"", ":2:13: max_share: \"all\" is not a number: allowed is 0 to 100"),
        ("[[limits.for]]\nuser = \"no-such-user\"", ":2:8: user: user \"no-such-user\" does not exist"),
        ("[[limits.for]]\nmax_priority = 5", ":1:1: name either `user` or `group`"),
        ("[limits]\nmax_queues = 0", ":2:14: max_queues: 0 is out of range: allowed is 1 to 1000000"),
        ("[[rules]]\nexecutable = \"a\"", ":1:1: give a `priority`, a `share` or `memory`"),
        ("[[rules]]\npriority = 5", ":1:1: name an `executable`, a `cgroup` or a `user`"),
        (
            "[defaults]\npolicy = true",
            ":2:10: policy: invalid type: boolean `true`, expected the name of a policy",
        ),
        (
            "[http]\nmetrics = \"localhost\"",
            ":2:11: metrics: \"localhost\" is not an address and a port: write for example",
        ),
        ("[http]\nmetrics = 9400", ":2:11: metrics: 9400 is not an address and a port"),
        ("[defaults", ":1:10: "),
    ] {
        config("check", text).failure().stderr(predicate::str::contains(position));
    }
}

#[test]
fn valid_file_is_shown_with_its_meaning() {
    let text = "[defaults]\npolicy = \"CFS\"\n[limits]\nmax_priority = \"low\"\n[[limits.for]]\nuser = 1000\n\
                max_share = 30\n[http]\nmetrics = \"[::1]:9400\"\n[[rules]]\ncgroup = \"/batch*\"\npriority = \"low\"\n";
    config("check", text).success().stdout(predicate::str::contains("no errors"));
    let shown = config("show", text).success();
    let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
    for line in [
        "policy = \"fair\"",
        "user = 1000",
        "max_priority = -100",
        "max_share = 30",
        "cgroup = \"/batch*\"",
        "metrics = \"[::1]:9400\"",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
    // The printed file has the same meaning.
    let again = config("show", &shown).success();
    let again = String::from_utf8(again.get_output().stdout.clone()).unwrap();
    assert_eq!(again.split_once('\n').unwrap().1, shown.split_once('\n').unwrap().1);
}

#[test]
fn all_errors_are_printed_at_once() {
    let text = "[defaults]\npolicy = \"best\"\n[limits]\nmax_share = 200\n";
    config("check", text).failure().stderr(
        predicate::str::contains("config.toml:2:10: policy: unknown policy")
            .and(predicate::str::contains("config.toml:4:13: max_share: share 200")),
    );
}

#[test]
fn created_file_has_no_errors_and_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("new/config.toml");
    let xsched = |action: &str| {
        Command::new(assert_cmd::cargo::cargo_bin!("xsched")).args(["config", action]).arg(&file).assert()
    };
    xsched("init").success();
    xsched("check").success().stdout(predicate::str::contains("no errors"));
    std::fs::write(&file, "# edited\n").unwrap();
    xsched("init").failure().stderr(predicate::str::contains("exists already"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# edited\n");
}

#[test]
fn page_quotes_the_created_file() {
    let page = include_str!("../../../docs/configuration.md");
    let template = include_str!("../src/config/template.toml");
    assert!(
        page.contains(&format!("```toml\n{template}```\n")),
        "docs/configuration.md differs from template.toml"
    );
}

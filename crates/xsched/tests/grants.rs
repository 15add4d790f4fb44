//! Grants: what the processes of a job may request, and when that begins and ends. Real processes in real control groups, of
//! another user, on the simulated device.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod job_group;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use environment::wait_until;
use job_group::{Cluster, JobGroup, OTHER_USER, error_line, grant};
use xsched_ipc::protocol::{Grant, Reply, Request, Target, TaskState};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn token_grant(name: &str) -> Grant {
    Grant { name: name.to_owned(), token: Some(TOKEN.to_owned()), priority: Some(100), ..Grant::default() }
}

#[test]
fn grant_is_the_default_and_the_limit_of_its_processes_until_it_is_revoked() {
    let Some(group) = JobGroup::create() else { return };
    let cluster = Cluster::new();
    let labels = [("job".to_owned(), "7".to_owned())].into();
    cluster.give(Grant { labels, ..grant("slurm-7", &group) });
    let member = cluster.start(Some(&group), OTHER_USER, &[]);
    let task = cluster.task(&member);
    assert_eq!((task.uid, task.priority, task.share), (OTHER_USER, 100, 40));
    assert_eq!((task.grant.as_deref(), task.labels["job"].as_str()), (Some("slurm-7"), "7"));
    let less = cluster.start(Some(&group), OTHER_USER, &["--priority", "low", "--share", "10"]);
    assert_eq!((cluster.task(&less).priority, cluster.task(&less).share), (-100, 10));

    // Neither at the start, nor later, nor by another process of the same user.
    let output = cluster.command(Some(&group), OTHER_USER, &run_once("200")).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.contains(
            "priority 200 was requested, 100 was granted: grant slurm-7 allows at most priority 100"
        )
    );
    assert!(message.contains("an administrator can raise it") && message.lines().count() == 1, "{message}");
    let pid = less.pid().to_string();
    for place in [Some(&group), None] {
        let raise = |priority| cluster.xsched(place, OTHER_USER, &["set", &pid, "--priority", priority]);
        let error = error_line(&raise("101"));
        assert!(error.contains("grant slurm-7 allows at most priority 100"), "{error}");
        assert!(raise("100").status.success() && raise("50").status.success());
    }
    let outside = cluster.start(None, OTHER_USER, &["--priority", "100"]);
    assert_eq!((cluster.task(&outside).priority, cluster.task(&outside).grant), (0, None));

    // A new grant of the same name applies before the reply.
    cluster.give(Grant { priority: Some(30), ..grant("slurm-7", &group) });
    assert_eq!((cluster.task(&member).priority, cluster.task(&less).priority), (30, 30));
    assert!(cluster.task(&member).labels.is_empty());
    assert_eq!(cluster.env.request(&Request::Revoke("slurm-7".into())), Reply::Done);
    let task = cluster.task(&member);
    assert_eq!((task.priority, task.share, task.grant), (0, 100, None), "the limits of the user");
    assert_eq!((cluster.task(&less).priority, cluster.task(&less).share), (0, 10));
    // A grant for processes that have joined already.
    cluster.give(grant("slurm-8", &group));
    assert_eq!((cluster.task(&member).priority, cluster.task(&less).priority), (100, 50));
}

/// `xsched run` of a program that exits soon, with a priority.
fn run_once(priority: &str) -> [&str; 9] {
    [env!("CARGO_BIN_EXE_xsched"), "run", "--priority", priority, "--", "work", "1", "1", "100"]
}

#[test]
fn token_gives_the_grant_to_its_user_only_and_is_never_shown() {
    if !rustix::process::geteuid().is_root() {
        return skipped::record_skipped("only root can become another user");
    }
    let cluster = Cluster::new();
    cluster.give(Grant { uid: Some(OTHER_USER), ..token_grant("ray") });
    let member = cluster.start_with(None, OTHER_USER, &[], Some(TOKEN));
    assert_eq!((cluster.task(&member).priority, cluster.task(&member).grant.as_deref()), (100, Some("ray")));
    let other_user = cluster.start_with(None, OTHER_USER + 1, &["--priority", "high"], Some(TOKEN));
    assert_eq!((cluster.task(&other_user).priority, cluster.task(&other_user).grant), (0, None));
    // They would hold the next program.
    drop((member, other_user));
    let mut forged = cluster.command(None, OTHER_USER, &run_once("high"));
    let forged = forged.env("XSCHED_GRANT", TOKEN.replace('0', "1")).output().unwrap();
    let message = String::from_utf8_lossy(&forged.stderr).into_owned();
    assert!(message.contains("0 was granted") && message.contains("belongs to no grant"), "{message}");

    let listed = cluster.xsched(None, 0, &["grants", "--json"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("\"has_token\": true") && !listed.contains(TOKEN), "{listed}");
    let stored = std::fs::read_to_string(grants_file(&cluster)).unwrap();
    assert!(!stored.contains(TOKEN) && stored.contains("ray"), "{stored}");
    let same = Request::Grant(Grant { name: "other".into(), ..token_grant("") });
    let Reply::Refused { why } = cluster.env.request(&same) else { panic!("two grants have one token") };
    assert!(why.contains("same token") && !why.contains(TOKEN), "{why}");
}

fn grants_file(cluster: &Cluster) -> PathBuf {
    let mut path = cluster.env.socket().as_os_str().to_owned();
    path.push(".grants");
    path.into()
}

#[test]
fn suspended_grant_suspends_present_and_future_processes() {
    let Some(group) = JobGroup::create() else { return };
    let mut cluster = Cluster::new();
    cluster.give(grant("job", &group));
    let (first, outside) =
        (cluster.start(Some(&group), OTHER_USER, &[]), cluster.start(None, OTHER_USER, &[]));
    first.next_line();
    assert!(cluster.xsched(None, 0, &["suspend", "--grant", "job"]).status.success());
    let later = cluster.start(Some(&group), OTHER_USER, &[]);
    let states = |cluster: &Cluster| [&first, &later].map(|program| cluster.task(program).state);
    assert_eq!(states(&cluster), [TaskState::Suspended; 2]);
    // Its own user cannot resume it.
    let resume = cluster.xsched(None, OTHER_USER, &["resume", &first.pid().to_string()]);
    assert!(resume.status.success() && states(&cluster) == [TaskState::Suspended; 2]);
    outside.next_line();
    let listed = cluster.xsched(None, 0, &["grants"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("suspended  2"), "{listed:?}");
    // The next service knows that, and the programs connect to it.
    cluster.env.kill_service();
    cluster.env.start_service();
    wait_until("both are suspended again", || {
        let tasks = cluster.env.status().tasks;
        let suspended = tasks.iter().filter(|task| task.state == TaskState::Suspended);
        suspended.filter(|task| [first.pid(), later.pid()].contains(&task.pid)).count() == 2
    });
    assert!(cluster.xsched(None, 0, &["resume", "--grant", "job"]).status.success());
    for program in [&first, &later] {
        program.lines.try_iter().for_each(drop);
        program.next_line();
        assert_eq!(cluster.task(program).priority, 100, "the grant has survived");
    }
    let pid = later.pid();
    assert!(cluster.xsched(None, 0, &["suspend", &pid.to_string()]).status.success());
    assert_eq!(
        (cluster.task(&first).state == TaskState::Suspended, cluster.task(&later).state),
        (false, TaskState::Suspended)
    );
    assert_eq!(cluster.env.request(&Request::Resume(Target::Pid(pid))), Reply::Done);
}

#[test]
fn processes_of_a_grant_are_one_job_per_user() {
    let Some(group) = JobGroup::create() else { return };
    let cluster = Cluster::new();
    cluster.give(Grant { is_job: true, ..grant("training", &group) });
    let ranks = [(); 2].map(|()| cluster.start(Some(&group), OTHER_USER, &[]));
    let root = cluster.start(Some(&group), 0, &[]);
    for rank in &ranks {
        assert_eq!(cluster.task(rank).job.as_deref(), Some("training"));
    }
    // If one member cannot run, the job is held. That of the other user is another job.
    assert_eq!(cluster.env.request(&Request::Suspend(Target::Pid(ranks[0].pid()))), Reply::Done);
    wait_until("the other rank is held", || cluster.task(&ranks[1]).state == TaskState::Held);
    root.lines.try_iter().for_each(drop);
    root.next_line();
    cluster.give(grant("training", &group));
    wait_until("the other rank runs", || cluster.task(&ranks[1]).state != TaskState::Held);
    assert_eq!(cluster.task(&ranks[1]).job, None);
}

#[test]
fn grant_ends_with_its_control_group_and_not_for_a_later_group_of_the_same_path() {
    let Some(group) = JobGroup::create() else { return };
    let cluster = Cluster::new();
    cluster.give(grant("job", &group));
    group.remove();
    wait_until("the grant has ended", || cluster.grants().is_empty());
    assert!(!grants_file(&cluster).exists());
    group.create_again();
    cluster.give(grant("job", &group));
    group.remove();
    group.create_again();
    let later = cluster.start(Some(&group), OTHER_USER, &["--priority", "high"]);
    assert_eq!((cluster.task(&later).priority, cluster.task(&later).grant), (0, None));
    assert!(cluster.grants().is_empty());
}

#[test]
fn grant_ends_with_the_process_that_it_depends_on() {
    let mut cluster = Cluster::new();
    let mut launcher = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    let member = cluster.start_with(None, 0, &["--priority", "5"], Some(TOKEN));
    let until_exit_of = Some(launcher.id());
    cluster.give(Grant { until_exit_of, ..token_grant("ray") });
    assert_eq!((cluster.task(&member).priority, cluster.task(&member).grant.as_deref()), (5, Some("ray")));
    let token = Some(TOKEN.replace('0', "1"));
    cluster.give(Grant { token, ..token_grant("revoked") });
    assert_eq!(cluster.env.request(&Request::Revoke("revoked".into())), Reply::Done);
    cluster.env.kill_service();
    cluster.env.start_service();
    assert_eq!(cluster.grants(), ["ray"], "a revoked grant does not return");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    wait_until("the grant has ended", || cluster.grants().is_empty());
    let gone = Request::Grant(Grant { until_exit_of, ..token_grant("ray") });
    assert!(matches!(cluster.env.request(&gone), Reply::Refused { why } if why.contains("does not exist")));
}

/// What the service reports, and what makes the file so.
type Preparation<'a> = (&'a str, &'a dyn Fn(&Path));

#[test]
fn unusable_file_of_grants_is_reported_in_one_line_and_ignored() {
    let mut cluster = Cluster::new();
    cluster.give(token_grant("ray"));
    let file = grants_file(&cluster);
    let valid = std::fs::read(&file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let target = cluster.env.device().with_extension("elsewhere");
    let prepare: [Preparation<'_>; 5] = [
        ("line 1", &|file| std::fs::write(file, &valid[1..]).unwrap()),
        ("format", &|file| {
            let text = String::from_utf8_lossy(&valid).replace("\"version\":1", "\"version\":9");
            std::fs::write(file, text).unwrap();
        }),
        ("priority 900", &|file| {
            std::fs::write(
                file,
                String::from_utf8_lossy(&valid).replace("\"priority\":100", "\"priority\":900"),
            )
            .unwrap();
        }),
        ("other users can access it", &|file| {
            std::fs::write(file, &valid).unwrap();
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
        }),
        ("symbolic link", &|file| {
            std::fs::write(&target, &valid).unwrap();
            std::fs::remove_file(file).unwrap();
            std::os::unix::fs::symlink(&target, file).unwrap();
        }),
    ];
    for (why, prepare) in prepare {
        cluster.env.kill_service();
        prepare(&file);
        let mut serve = cluster.command(None, 0, &[env!("CARGO_BIN_EXE_xsched"), "serve", "--quiet"]);
        let mut service = serve.stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the service listens", || {
            xsched_ipc::socket::Connection::to(cluster.env.socket()).is_ok()
        });
        assert!(cluster.grants().is_empty(), "{why}");
        service.kill().unwrap();
        let message = String::from_utf8(service.wait_with_output().unwrap().stderr).unwrap();
        assert!(message.contains("are ignored") && message.contains(why), "{why}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    // The next grant replaces the link, not the file that it leads to.
    cluster.env.start_service();
    cluster.give(token_grant("new"));
    assert!(std::fs::symlink_metadata(&file).unwrap().is_file());
    assert_eq!(std::fs::read(&target).unwrap(), valid);
}

#[test]
fn invalid_grants_are_refused_with_one_line() {
    let Some(group) = JobGroup::create() else { return };
    let cluster = Cluster::new();
    let path = group.path();
    for (arguments, expected) in [
        (vec!["--priority", "5"], "needs a control group or a token"),
        (vec!["--cgroup", "/no/such/group"], "does not exist"),
        (vec!["--cgroup", "relative"], "as in /proc/PID/cgroup"),
        (vec!["--pid", "999999999"], "cannot read the control group of process 999999999"),
        (vec!["--token", "/no/such/file"], "cannot read the token from /no/such/file"),
        (vec!["--token", "/dev/null"], "32 to 256 visible"),
        (vec!["--cgroup", &path, "--label", "a-b=1"], "letters, digits and underscores"),
        (vec!["--cgroup", &path, "--label", "a=1", "--label", "a=2"], "twice"),
        (vec!["--cgroup", &path, "--until-exit", "999999999"], "does not exist"),
    ] {
        let error = error_line(&cluster.xsched(None, 0, &[&["grant", "bad"], &arguments[..]].concat()));
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    for (arguments, expected) in [
        (["--priority", "300"], "priority 300 is out of range"),
        (["--share", "0"], "share 0 is out of range"),
        (["--memory", "5X"], "unknown unit"),
        (["--memory", "0"], "less than 1M"),
        (["--user", "no-such-user"], "does not exist on this machine"),
        (["--label", "job"], "is not NAME=VALUE"),
    ] {
        let output =
            cluster.xsched(None, 0, &[&["grant", "bad", "--cgroup", &path][..], &arguments].concat());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.lines().next().unwrap().contains(expected), "{message}");
    }
    let error = error_line(&cluster.xsched(None, 0, &["revoke", "nothing"]));
    assert!(error.contains("no grant named `nothing`"), "{error}");
    assert!(cluster.grants().is_empty());
    let pid = cluster.start(Some(&group), 0, &[]);
    let given =
        cluster.xsched(None, 0, &["grant", "by-pid", "--pid", &pid.pid().to_string(), "--priority", "7"]);
    assert!(given.status.success() && cluster.task(&pid).grant.as_deref() == Some("by-pid"), "{given:?}");
    assert!(given.stderr.is_empty(), "{given:?}");
    let with_memory = cluster.xsched(None, 0, &["grant", "memory", "--cgroup", &path, "--memory", "20G"]);
    assert!(with_memory.status.success() && with_memory.stderr.is_empty(), "{with_memory:?}");
}

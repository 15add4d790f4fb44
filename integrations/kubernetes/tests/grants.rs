//! Pods on one GPU, from the API server to the device: the real agent, the real service and real programs on the simulated device,
//! with a kubelet and an API server of the test's own. The processes of a pod are in a control group made by the test.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod api_server;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod kubelet;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../../../crates/xsched/tests/measured/mod.rs"]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod node;
mod pods_on_device;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../../../crates/xsched/tests/skipped/mod.rs"]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../../../crates/xsched/tests/test_program/mod.rs"]
mod test_program;

use measured::{percentile, print_latencies, require, retry_comparison, retry_comparison_on_cpu};
use node::wait_until;
use pods_on_device::{Machine, TestPod};
use skipped::record_skipped;
use test_program::TestProgram;
use xsched_ipc::grant::Grant;
use xsched_ipc::protocol::{Reply, Request};

/// 8 ms of work every 20 ms.
const REQUESTS: [&str; 5] = ["requests", "200", "8", "1000", "20"];
/// Work for two minutes without idle gaps.
const BATCH: [&str; 4] = ["work", "1200", "50", "2000"];
/// Values of PriorityClasses.
const HIGH: i64 = 1_000_000;
const LOW: i64 = -1_000;

#[test]
fn processes_of_pods_have_the_rights_of_their_pods() {
    let Some(mut machine) = Machine::new() else { return };
    machine.start_service();
    machine.start_agent();
    let share = [("xsched.io/share", "40"), ("xsched.io/memory", "2Gi")];
    let high = machine.start_pod("high", HIGH, &share);
    let low = machine.start_pod("low", LOW, &[]);
    // The grants are in force before the containers start.
    let grants = machine.grants();
    let of = |name: &str| grants.iter().find(|grant| grant.name == name).unwrap();
    let grant = of("pod-default-high");
    assert_eq!((grant.priority, grant.share, grant.memory), (Some(170), Some(40), Some(2 << 30)));
    assert_eq!(grant.labels["user"], "tester");
    assert_eq!(grant.labels["slots"], "gpu0-slot0");
    let programs = [high.spawn(&machine, &BATCH), low.spawn(&machine, &BATCH)];
    wait_until("both programs are scheduled", || machine.tasks().len() == 2);
    for (program, (name, priority)) in
        programs.iter().zip([("pod-default-high", 170), ("pod-default-low", -85)])
    {
        let tasks = machine.tasks();
        let task = tasks.iter().find(|task| task.pid == program.pid()).unwrap();
        assert_eq!((task.grant.as_deref(), task.priority), (Some(name), priority), "{task:?}");
    }
    // A changed annotation applies to the running program.
    machine.update_pod(&high, HIGH, &[("xsched.io/priority", "5")]);
    wait_until("the changed priority applies", || machine.tasks().iter().any(|task| task.priority == 5));
    drop(programs);
    // Pods end in two ways: the API server reports the end, or it deletes the pod.
    machine.end_pod(&high, Some("Succeeded"));
    machine.end_pod(&low, None);
    wait_until("no grant is left", || machine.grants().is_empty());
}

#[test]
fn latency_of_an_important_pod_beside_another_is_close_to_alone() {
    let Some(mut machine) = Machine::new() else { return };
    machine.start_service();
    machine.start_agent();
    let high = machine.start_pod("high", HIGH, &[]);
    let low = machine.start_pod("low", LOW, &[]);
    let measure = || {
        let alone = high.spawn(&machine, &REQUESTS).latencies();
        let batch = low.spawn(&machine, &BATCH);
        batch.next_line();
        let beside = high.spawn(&machine, &REQUESTS).latencies();
        // The batch gets the remaining device time.
        batch.next_line();
        drop(batch);
        wait_until("the programs have gone", || machine.tasks().is_empty());
        let unscheduled_batch = TestProgram::spawn(machine.unscheduled(&BATCH));
        unscheduled_batch.next_line();
        let native = TestProgram::spawn(machine.unscheduled(&REQUESTS)).latencies();
        print_latencies(&[("alone", &alone), ("beside", &beside), ("native", &native)]);
        [alone, beside, native]
    };
    let compare = |latencies: &[Vec<u64>; 3], percent: usize| {
        let [alone, beside, native] = latencies.each_ref().map(|latencies| percentile(latencies, percent));
        let describe =
            || format!("p{percent} alone {alone} us, beside {beside} us, without XSched {native} us");
        require(2 * native > 3 * alone, describe)?;
        require(10 * beside <= 12 * alone, describe)
    };
    // The median also on a busy machine. For the tail, the service and the programs need a CPU when they are woken.
    let mut measured = None;
    retry_comparison(&measure, |latencies| {
        let result = compare(&latencies, 50);
        measured = Some(latencies);
        result
    });
    let mut first = measured;
    retry_comparison_on_cpu(
        || first.take().unwrap_or_else(&measure),
        |latencies| compare(&latencies, 99),
        record_skipped,
    );
}

#[test]
fn killed_agents_and_services_lose_no_grant_and_leave_none() {
    let Some(mut machine) = Machine::new() else { return };
    machine.start_service();
    machine.start_agent();
    let staying = machine.start_pod("staying", HIGH, &[]);
    let ending = machine.start_pod("ending", LOW, &[]);
    let program = staying.spawn(&machine, &BATCH);
    program.next_line();
    let has_rights = |machine: &Machine| {
        machine.tasks().iter().any(|task| task.pid == program.pid() && task.priority == 170)
    };
    wait_until("the program has its priority", || has_rights(&machine));
    // A pod ends and another one starts while no agent runs.
    machine.kill_agent();
    machine.end_pod(&ending, None);
    let starting = machine.put_pod("starting", LOW, &[]);
    assert_eq!(machine.names(), ["pod-default-ending", "pod-default-staying"]);
    machine.start_agent();
    wait_until("the grants are those of the pods", || {
        machine.names() == ["pod-default-starting", "pod-default-staying"]
    });
    // A service that has lost its file gets every grant again; the program joins it again.
    machine.kill_service();
    machine.forget_grants();
    machine.start_service();
    wait_until("the new service has the grants", || machine.names().len() == 2);
    wait_until("the program has its priority again", || has_rights(&machine));
    machine.kill_agent();
    machine.kill_service();
    machine.start_service();
    machine.start_agent();
    wait_until("the program has its priority without the first agent", || has_rights(&machine));
    drop(program);
    machine.end_pod(&staying, None);
    machine.end_pod(&starting, None);
    wait_until("no grant is left", || machine.grants().is_empty());
}

#[test]
fn root_process_in_a_pod_cannot_forge_or_exceed_rights() {
    let Some(mut machine) = Machine::new() else { return };
    machine.start_service();
    machine.start_agent();
    let high = machine.start_pod("high", HIGH, &[]);
    let low = machine.start_pod("low", LOW, &[]);
    let victim = high.spawn(&machine, &BATCH);
    wait_until("the other pod's program is scheduled", || !machine.tasks().is_empty());
    let before = machine.grants();
    // More than the grant, by the environment that a container can set.
    let mut greedy = low.command(&machine, &BATCH);
    greedy.env("XSCHED_AUTO_XQUEUE_PRIORITY", "255").env("XSCHED_GRANT", "x".repeat(40));
    let greedy = TestProgram::spawn(greedy);
    wait_until("the program is scheduled", || machine.tasks().iter().any(|task| task.pid == greedy.pid()));
    let priority = |pid| machine.tasks().iter().find(|task| task.pid == pid).map(|task| task.priority);
    assert_eq!(priority(greedy.pid()), Some(-85));
    let own = low.cgroup_path();
    for (refused, what) in [
        (vec!["grant", "mine", "--cgroup", own, "--priority", "255"], "a grant of its own"),
        (vec!["grant", "pod-default-low", "--cgroup", own, "--priority", "255"], "its own grant"),
        (vec!["revoke", "pod-default-high"], "the end of another pod's grant"),
        (vec!["revoke", "pod-default-low"], "the end of its own grant, to become an administrator"),
        (vec!["policy", "fair"], "another policy"),
        (vec!["stop"], "the end of the service"),
    ] {
        let arguments: Vec<&str> = std::iter::once("xsched").chain(refused).collect();
        let output = low.command(&machine, &arguments).output().unwrap();
        assert!(!output.status.success(), "a pod could request {what}: {output:?}");
    }
    // The administrator can do the same, so the pod's requests were refused for the right reason.
    let other = TestPod::create(&machine, "other");
    for allowed in [
        &["xsched", "grant", "mine", "--cgroup", other.cgroup_path(), "--priority", "255"][..],
        &["xsched", "revoke", "mine"],
        &["xsched", "policy", "priority"],
    ] {
        let output = machine.unscheduled(allowed).output().unwrap();
        assert!(output.status.success(), "{allowed:?}: {output:?}");
    }
    let pid = victim.pid().to_string();
    let set = low.command(&machine, &["xsched", "set", &pid, "--priority", "-200"]).output().unwrap();
    assert!(!set.status.success(), "{set:?}");
    let raise = ["xsched", "set", &greedy.pid().to_string(), "--priority", "200"].map(str::to_owned);
    drop(low.command(&machine, &raise.each_ref().map(String::as_str)).output().unwrap());
    assert_eq!((priority(victim.pid()), priority(greedy.pid())), (Some(170), Some(-85)));
    assert_eq!(machine.grants(), before);
    // A pod that is deleted by force: without its grant, the process that still runs would be an administrator.
    machine.end_pod(&low, None);
    let later = machine.start_pod("later", 0, &[]);
    assert_eq!(machine.names(), ["pod-default-high", "pod-default-later", "pod-default-low"]);
    let stop = low.command(&machine, &["xsched", "stop"]).output().unwrap();
    assert!(!stop.status.success(), "{stop:?}");
    drop(greedy);
    wait_until("the grant ends with the last process", || {
        !machine.names().contains(&"pod-default-low".to_owned())
    });
    drop(later);
}

#[test]
fn grants_of_the_administrator_are_left_alone() {
    let Some(mut machine) = Machine::new() else { return };
    machine.start_service();
    let cgroup = TestPod::create(&machine, "by-hand");
    let grant = Grant {
        name: "pod-by-hand".to_owned(),
        cgroup: Some(cgroup.cgroup_path().to_owned()),
        priority: Some(3),
        ..Grant::default()
    };
    assert_eq!(machine.request(&Request::Grant(grant)), Reply::Done);
    machine.start_agent();
    let pod = machine.start_pod("a", 0, &[]);
    machine.end_pod(&pod, None);
    wait_until("the pod's grant has gone", || machine.names() == ["pod-by-hand"]);
}

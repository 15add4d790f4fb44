//! Programs that use `ROCr` without HIP, on a machine without a GPU: there is neither a table nor a name of HIP's to be found, and
//! `ROCr`'s tools interface is the way that is left.

#[allow(dead_code, reason = "the other tests with actors use the rest")]
mod actor;
#[allow(dead_code, reason = "the other tests with these stand-ins use the rest")]
mod hip_stage;
#[allow(dead_code, reason = "the other tests that measure use the rest")]
mod measured;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use actor::Actor;
use hip_stage::{Scene, ended, kit, said};
use measured::{claim, measured};
use stage::{Stage, eventually};
use xsched_ipc::protocol::TaskState;

const IMPORTANT: [&str; 4] = ["--priority", "high", "--name", "high"];
const UNIMPORTANT: [&str; 4] = ["--priority", "low", "--name", "low"];
const FORMS: &str = "651 packets, 651 done\n";

/// With somebody who wants the device all the time.
fn with_company(scene: &Scene) -> Actor {
    let company = Actor::enter(scene.run(&UNIMPORTANT, &["linked", "work", "100000", "6", "500"]));
    company.line();
    company
}

#[test]
fn every_packet_arrives_once_whichever_way_the_table_came() {
    // As a tool in the process, as one that is named, as rocprofiler-register has it.
    for way in ["HSA_STANDIN", "HSA_STANDIN_OLD", "HSA_STANDIN_REGISTER"] {
        let scene = Scene::new(Stage::with_service()).with("XLOG_LEVEL", "INFO").with(way, "1");
        let _company = with_company(&scene);
        assert_eq!(said(scene.direct(&["hsa", "forms"])), FORMS);
        for priority in ["high", "-100"] {
            let output = ended(&mut scene.run(&["--priority", priority], &["hsa", "forms"]));
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(String::from_utf8_lossy(&output.stdout), FORMS, "{priority}: {log}");
            let way = log
                .lines()
                .filter(|line| line.contains("HSA is scheduled by ROCr's tools interface"))
                .count();
            assert_eq!(way, 1, "{log}");
        }
        assert_eq!(
            said(scene.run(&IMPORTANT, &["hsa", "again"])),
            FORMS.repeat(2),
            "after it was begun anew"
        );
    }
}

#[test]
fn it_is_a_task_like_others_at_the_level_of_its_device() {
    let scene = Scene::new(Stage::with_service());
    let low = Actor::enter(scene.run(&UNIMPORTANT, &["hsa", "work", "100000", "6", "500"]));
    low.line();
    let task = |name: &str| scene.stage.status().tasks.into_iter().find(|task| task.name == name);
    eventually("it is scheduled", || task("low").is_some_and(|task| task.queues == 2));
    assert!(scene.stage.status().queues.iter().all(|queue| queue.level == 3), "by the driver");
    // A HIP program and one without share the device, by its address.
    let high = Actor::enter(scene.run(&IMPORTANT, &["linked", "work", "1", "100", "20000"]));
    eventually("it gives way to a HIP program", || {
        task("low").is_some_and(|task| task.state == TaskState::Held)
    });
    eventually("its queues are inactive", || scene.driver_log().contains(" share 0 "));
    assert_eq!(task("low").map(|task| task.device), task("high").map(|task| task.device));
    drop(high);
    low.lines.try_iter().for_each(drop);
    for _ in 0..3 {
        low.line();
    }
}

#[test]
fn requests_take_as_long_beside_a_batch_as_alone() {
    const REQUESTS: [&str; 6] = ["hsa", "requests", "40", "8", "1000", "20"];
    measured(|| {
        let latencies = |command| {
            let program = Actor::enter(command);
            let mut all: Vec<u64> = (0..40).map(|_| program.line().parse().unwrap()).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        let alone = latencies(Scene::new(Stage::without_service()).direct(&REQUESTS));
        let beside = |options: &[&str], length: &str| {
            let scene = Scene::new(Stage::with_service());
            let low: Vec<_> = UNIMPORTANT.iter().chain(options).copied().collect();
            let batch = Actor::enter(scene.run(&low, &["hsa", "work", "100000", "6", length]));
            batch.line();
            let took = latencies(scene.run(&IMPORTANT, &REQUESTS));
            batch.lines.try_iter().for_each(drop);
            batch.line();
            took
        };
        // As the device has it: nobody schedules.
        let scene = Scene::new(Stage::without_service());
        let batch = Actor::enter(scene.direct(&["hsa", "work", "100000", "6", "20000"]));
        batch.line();
        let native = latencies(scene.direct(&REQUESTS));
        drop(batch);
        let (third, first) = (beside(&[], "20000"), beside(&["--level", "1", "--budget", "4ms"], "2000"));
        println!(
            "alone {alone} us; beside 20 ms {native} us, at level 3 {third} us; level 1 beside 2 ms {first} us"
        );
        // Most of what the other cost it is gone, on a machine that is busy itself.
        let told = || format!("alone {alone} us, native {native} us, level 3 {third} us, level 1 {first} us");
        claim(2 * third.saturating_sub(alone) <= native.saturating_sub(alone), told)?;
        // Its window, one command more, and what the machine needs to tell one from the other.
        claim(first <= alone + 4000 + 2000 + alone / 2, told)?;
        Ok(())
    });
}

#[test]
fn another_tool_keeps_working() {
    let tool = kit().programs.join("libhsatool.so");
    let scene = Scene::new(Stage::with_service()).with("XLOG_LEVEL", "INFO").with("HSA_TOOLS_LIB", &tool);
    let expected = "round 0\nround 1\nround 2\nthe tool saw 2 queues and every doorbell\n";
    assert_eq!(said(scene.direct(&["hsa", "work", "3", "7", "100"])), expected);
    let output = ended(&mut scene.run(&IMPORTANT, &["hsa", "work", "3", "7", "100"]));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{log}");
    assert!(log.contains("HSA is scheduled by ROCr's tools interface"), "{log}");
}

#[test]
fn a_runtime_that_is_told_of_us_needs_no_preload() {
    let scene = Scene::new(Stage::with_service()).with("XLOG_LEVEL", "INFO");
    let mut command = scene.direct(&["hsa", "again"]);
    command.env("HSA_TOOLS_LIB", scene.stage.library("libxsched.so"));
    let output = ended(command.env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON"));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), FORMS.repeat(2), "{log}");
    assert!(log.contains("HSA is scheduled by ROCr's tools interface"), "{log}");
    assert!(
        log.contains("HSA is scheduled at level 1: none of the program's calls to /dev/kfd was seen"),
        "{log}"
    );
}

#[test]
fn queues_are_left_to_hip_where_it_is_there() {
    let scene = Scene::new(Stage::with_service())
        .with("XLOG_LEVEL", "INFO")
        .with("HIP_RUNTIME", kit().runtime.join("libamdhip64.so.6"));
    let output = ended(&mut scene.run(&IMPORTANT, &["hsa", "forms"]));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), FORMS, "{log}");
    assert!(log.contains("ROCr's queues are left to libamdhip64.so"), "{log}");
    assert!(!log.contains("HSA is scheduled"), "{log}");
}

#[test]
fn a_table_that_is_not_as_expected_is_left_alone() {
    // The last has one function less than we need.
    for size in ["0", "16", "352"] {
        let scene =
            Scene::new(Stage::with_service()).with("XLOG_LEVEL", "WARN").with("HSA_STANDIN_SIZE", size);
        let output = ended(&mut scene.run(&IMPORTANT, &["hsa", "forms"]));
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), FORMS, "{size}: {log}");
        assert!(log.contains("a ROCr runtime's table of functions is not as expected"), "{size}: {log}");
    }
}

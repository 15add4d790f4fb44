//! HIP programs on a machine without a GPU: stand-ins for AMD's runtime and driver, programs that know nothing of XSched,
//! the real `xsched run` and the real service.

#[allow(dead_code, reason = "the other tests with actors use the rest")]
mod actor;
mod hip_stage;
#[allow(dead_code, reason = "the other tests that measure use the rest")]
mod measured;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::path::Path;
use std::process::Command;

use actor::Actor;
use hip_stage::{Scene, ended, kit, said};
use measured::{claim, measured, percentile, tell};
use stage::{Stage, eventually};
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{Reply, Request, Target, TaskState};

/// How programs come by the runtime: linked, by a library that is opened for itself alone, by looking every function up, and
/// by looking it up with its version.
const PROGRAMS: [&str; 4] = ["linked", "opened", "looked_up", "by_version"];
const IMPORTANT: [&str; 4] = ["--priority", "high", "--name", "high"];
const UNIMPORTANT: [&str; 4] = ["--priority", "low", "--name", "low"];

/// With somebody who wants the device all the time, so that gates, windows and markers are at work.
fn with_company(scene: &Scene) -> Actor {
    let company = Actor::enter(scene.run(&UNIMPORTANT, &["linked", "work", "100000", "6", "500"]));
    company.line();
    company
}

#[test]
fn every_form_of_launch_arrives_once_however_the_runtime_was_found() {
    for table in [true, false] {
        let mut scene =
            Scene::new(Stage::with_service()).with("XLOG_LEVEL", "INFO").with("HIP_STANDIN_DEVICES", "2");
        if !table {
            scene = scene.with("HIP_STANDIN_NO_REGISTER", "1");
        }
        let _company = with_company(&scene);
        for program in PROGRAMS {
            let direct = said(scene.direct(&[program, "forms"]));
            assert_eq!(direct, "98 launched, 98 arrived, 5 nodes, priority -1, last error 0\n");
            for priority in ["high", "-100"] {
                let output = ended(&mut scene.run(&["--priority", priority], &[program, "forms"]));
                let (out, log) =
                    (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                assert_eq!(out, direct, "{program}, {priority}: {log}");
                let way = if table { "the runtime's own table" } else { "the names of its functions" };
                let lines = log.lines().filter(|line| line.contains("HIP is scheduled")).collect::<Vec<_>>();
                assert!(
                    matches!(lines[..], [line] if line.ends_with(&format!("by {way}"))),
                    "{program}: {log}"
                );
            }
        }
    }
}

#[test]
fn errors_are_the_programs_own() {
    for last_error in ["sticky", "every"] {
        for table in ["", "1"] {
            let mut scene = Scene::new(Stage::with_service()).with("HIP_STANDIN_LAST_ERROR", last_error);
            if !table.is_empty() {
                scene = scene.with("HIP_STANDIN_NO_REGISTER", table);
            }
            let _company = with_company(&scene);
            for program in PROGRAMS {
                let direct = said(scene.direct(&[program, "errors"]));
                assert_eq!(
                    said(scene.run(&IMPORTANT, &[program, "errors"])),
                    direct,
                    "{program}, {last_error}"
                );
                let paced = said(scene.run(&["--priority", "-50"], &[program, "errors"]));
                assert_eq!(paced, direct, "{program}, {last_error}, paced");
            }
        }
    }
}

#[test]
fn what_fails_behind_a_naive_interposer_works_behind_ours() {
    let good = "randn: 0\nmatmul: 0\nconv: 0\nstream: 0\nsum: 0, 0 wrong\n";
    let scene = Scene::new(Stage::with_service());
    let naive = |faults: &str| {
        let mut command = scene.direct(&["linked", "tensors"]);
        let preload = format!("{}:{}", kit().programs.join("libnaive.so").display(), kit().driver.display());
        command.env("LD_PRELOAD", preload).env("NAIVE", faults);
        command.env("NAIVE_RUNTIME", kit().other_runtime.join("libamdhip64.so.6"));
        let output = ended(&mut command);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(naive(""), (Some(0), good.to_owned()), "without a fault there is nothing to see");
    // "invalid device function", and a handle of the other copy that rocBLAS answers "not initialized" to.
    let (_, copy) = naive("copy");
    assert!(copy.contains("randn: 98\nmatmul: 400\n") && copy.contains("stream: 709\n"), "{copy}");
    // An error that nobody asked for: rocBLAS and MIOpen give up.
    let (_, call) = naive("call");
    assert!(call.contains("randn: 0\nmatmul: 801\nconv: 801\n"), "{call}");
    // Arguments that are gone when they are read: wrong numbers, or the end.
    let (status, defer) = naive("defer");
    assert!(status.is_none() || !defer.contains(" 0 wrong"), "{status:?}, {defer}");

    let _company = with_company(&scene);
    for program in PROGRAMS {
        assert_eq!(said(scene.run(&IMPORTANT, &[program, "tensors"])), good, "{program}");
        assert_eq!(said(scene.run(&["--priority", "-50"], &[program, "tensors"])), good, "{program}, paced");
    }
}

#[test]
fn two_runtimes_in_one_process_keep_apart() {
    let good = "randn: 0\nmatmul: 0\nconv: 0\nstream: 0\nsum: 0, 0 wrong\n";
    for table in [true, false] {
        let mut scene = Scene::new(Stage::with_service())
            .with("HIP_RUNTIME", kit().other_runtime.join("libamdhip64.so.6"))
            .with("XLOG_LEVEL", "WARN");
        if !table {
            scene = scene.with("HIP_STANDIN_NO_REGISTER", "1");
        }
        let _company = with_company(&scene);
        let output = ended(&mut scene.run(&IMPORTANT, &["twice", "tensors"]));
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), good.repeat(2), "{log}");
        let told = log.lines().filter(|line| line.contains("2 HIP runtimes in one process")).count();
        assert_eq!(told, 1, "{log}");
        let forms = said(scene.run(&IMPORTANT, &["twice", "forms"]));
        assert_eq!(forms, "98 launched, 98 arrived, 5 nodes, priority -1, last error 0\n".repeat(2));
    }
}

#[test]
fn what_is_out_of_the_ordinary_costs_at_most_scheduling_and_is_said_once() {
    let cases: [(&str, &str, &str, &str); 6] = [
        ("HIP_STANDIN_SLOTS", "100", "INFO", "in its 100 slots"),
        ("HIP_STANDIN_SLOTS", "540", "INFO", "31 of 31 functions are in its 540 slots"),
        ("HIP_STANDIN_SLOTS", "0", "WARN", "table of functions is not as expected"),
        ("HIP_VISIBLE_DEVICES", "5", "WARN", "HIP runs unscheduled: the runtime sees no device"),
        ("KFD_STANDIN_REFUSE", "all", "WARN", "HIP runs unscheduled: the runtime sees no device"),
        (
            "KFD_STANDIN_REFUSE",
            "second",
            "WARN",
            "HIP is scheduled at level 1: cannot open /dev/kfd: Permission denied",
        ),
    ];
    for (variable, value, level, line) in cases {
        let scene = Scene::new(Stage::with_service()).with(variable, value).with("XLOG_LEVEL", level);
        for program in PROGRAMS {
            let direct = ended(&mut scene.direct(&[program, "work", "2", "2", "100"]));
            let output = ended(&mut scene.run(&IMPORTANT, &[program, "work", "2", "2", "100"]));
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.stdout, direct.stdout, "{variable}={value}: {log}");
            assert_eq!(output.status.code(), direct.status.code(), "{variable}={value}: {log}");
            let told = log.lines().filter(|said| said.contains(line)).count();
            // A program that fails before its first launch never meets us.
            let expected = usize::from(output.status.code() == Some(0));
            assert!(
                told == expected || (told == 1 && log.contains(line)),
                "{variable}={value}, {program}: {log}"
            );
        }
    }
}

#[test]
fn a_profiler_in_the_same_process_keeps_working() {
    let scene = Scene::new(Stage::with_service()).with("XLOG_LEVEL", "INFO");
    let preload = format!("{}:{}", kit().programs.join("libprofiler.so").display(), kit().driver.display());
    let mut direct = scene.direct(&["opened", "work", "3", "7", "100"]);
    direct.env("LD_PRELOAD", &preload);
    let direct = said(direct);
    assert!(direct.ends_with("profiled 21 launches\n"), "{direct}");
    let mut command = scene.run(&IMPORTANT, &["opened", "work", "3", "7", "100"]);
    let output = ended(command.env("LD_PRELOAD", &preload));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), direct, "{log}");
    assert!(log.contains("HIP is scheduled by the runtime's own table"), "{log}");
}

#[test]
fn a_runtime_that_is_told_of_us_needs_no_preload() {
    let scene = Scene::new(Stage::with_service()).with("XLOG_LEVEL", "INFO");
    let direct = said(scene.direct(&["opened", "forms"]));
    let mut command = scene.direct(&["opened", "forms"]);
    command.env("ROCPROFILER_REGISTER_LIBRARY", scene.stage.library("libxsched.so"));
    let output = ended(command.env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON"));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), direct, "{log}");
    assert!(log.contains("HIP is scheduled by the runtime's own table"), "{log}");
    assert!(
        log.contains("HIP is scheduled at level 1: none of the program's calls to /dev/kfd was seen"),
        "{log}"
    );
}

#[test]
fn a_person_suspends_a_program_and_its_queues_stop() {
    let scene = Scene::new(Stage::with_service());
    let actor = Actor::enter(scene.run(&["--name", "service"], &["opened", "work", "100000", "6", "2000"]));
    actor.line();
    let its_task = || scene.stage.status().tasks.into_iter().find(|task| task.name == "service");
    eventually("it is scheduled", || its_task().is_some());
    let task = its_task().unwrap();
    assert_eq!(task.device, DeviceId::new(DeviceKind::Gpu, 0xc1 << 8).0, "the device by its PCI address");
    assert_eq!(task.queues, 3, "the default stream and the two it made");
    let whom = Target::Pid(actor.pid());
    assert_eq!(scene.stage.ask(&Request::Suspend(whom.clone())), Reply::Done);
    eventually("it is suspended", || its_task().is_some_and(|task| task.state == TaskState::Suspended));
    let count = |what: &str| scene.driver_log().lines().filter(|line| line.contains(what)).count();
    let made = count("create");
    // Each queue once, all at a time.
    eventually("its queues are inactive", || count(" share 0 ") == made);
    assert_eq!(scene.stage.ask(&Request::Resume(whom)), Reply::Done);
    eventually("they are active again", || count(" share 100 ") >= made);
    actor.lines.try_iter().for_each(drop);
    for _ in 0..3 {
        actor.line();
    }
    assert!(!scene.driver_log().contains("good false"), "{}", scene.driver_log());
}

#[test]
fn requests_take_as_long_beside_a_batch_as_alone() {
    const REQUESTS: [&str; 6] = ["opened", "requests", "60", "8", "1000", "20"];
    measured(|| {
        let alone = Actor::enter(Scene::new(Stage::without_service()).direct(&REQUESTS)).latencies();
        let beside = |options: &[&str], length: &str| {
            let scene = Scene::new(Stage::with_service());
            let low: Vec<_> = UNIMPORTANT.iter().chain(options).copied().collect();
            let batch = Actor::enter(scene.run(&low, &["linked", "work", "100000", "6", length]));
            batch.line();
            let latencies = Actor::enter(scene.run(&IMPORTANT, &REQUESTS)).latencies();
            batch.lines.try_iter().for_each(drop);
            batch.line();
            latencies
        };
        // Level 3, with kernels that take longer than a request; level 1, with a window of four milliseconds.
        let long = beside(&[], "20000");
        let short = beside(&[], "500");
        let first = beside(&["--level", "1", "--budget", "4ms"], "2000");
        tell(&[
            ("alone", &alone),
            ("level 3, 20 ms", &long),
            ("level 3, 0.5 ms", &short),
            ("level 1, 2 ms", &first),
        ]);
        let [alone, long, short, first] = [&alone, &long, &short, &first].map(|all| percentile(all, 50));
        let told = || format!("alone {alone} us, level 3 {long} and {short} us, level 1 {first} us");
        claim(10 * long <= 12 * alone && 10 * short <= 12 * alone, told)?;
        // Its window, one command more, and what the machine needs to tell one from the other.
        claim(first <= alone + 4000 + 2000 + alone / 4, told)?;
        Ok(())
    });
}

#[test]
fn where_the_driver_cannot_be_asked_queues_stop_at_stall_points() {
    // Up to 32 kernels of 1 ms in flight, with a marker, and so a stall point, behind each.
    let requests = |cp_wait: &str| {
        let scene = Scene::new(Stage::with_service())
            .with("KFD_STANDIN_REFUSE", "second")
            .with("GPU_STREAMOPS_CP_WAIT", cp_wait)
            .with("XSCHED_AUTO_XQUEUE_THRESHOLD", "32")
            .with("XSCHED_AUTO_XQUEUE_BATCH_SIZE", "1");
        let batch = Actor::enter(scene.run(&UNIMPORTANT, &["linked", "work", "100000", "120", "1000"]));
        let high = Actor::enter(scene.run(&IMPORTANT, &["opened", "requests", "15", "16", "1000", "60"]));
        let mut all: Vec<u64> = (0..15).map(|_| high.line().parse().unwrap()).collect();
        all.sort_unstable();
        let level = scene.stage.status().queues.iter().map(|queue| queue.level).max();
        drop(high);
        batch.lines.try_iter().for_each(drop);
        batch.line();
        (level, all[all.len() / 2])
    };
    measured(|| {
        let (first, second) = (requests("0"), requests("1"));
        println!("level 1: {} us, level 2: {} us", first.1, second.1);
        assert_eq!((first.0, second.0), (Some(1), Some(2)));
        // A request takes 16 ms alone; what comes on top is what counts.
        let on_top = |us: u64| us.saturating_sub(16_000);
        let told = || format!("{} us at stall points, {} us without", second.1, first.1);
        claim(2 * on_top(second.1) < on_top(first.1), told)?;
        Ok(())
    });
}

/// With the device's reset end its streams, and the words that they wait for.
#[test]
fn a_program_that_resets_its_device_goes_on_as_without_us() {
    const RESETS: [&str; 5] = ["opened", "resets", "8", "9", "300"];
    let expected = said(Scene::new(Stage::without_service()).direct(&RESETS));
    assert!(expected.ends_with("round 8: 9, last error 0\n"), "{expected}");
    for driver in ["", "second"] {
        let scene = Scene::new(Stage::with_service())
            .with("KFD_STANDIN_REFUSE", driver)
            .with("GPU_STREAMOPS_CP_WAIT", "1");
        let _rival = Actor::enter(scene.run(&IMPORTANT, &["opened", "requests", "100000", "2", "500", "5"]));
        let _equal = Actor::enter(scene.run(&UNIMPORTANT, &["linked", "work", "100000", "6", "300"]));
        for _ in 0..3 {
            assert_eq!(said(scene.run(&UNIMPORTANT, &RESETS)), expected);
        }
    }
}

#[test]
fn whoever_is_stopped_when_the_service_dies_runs_on() {
    let mut scene = Scene::new(Stage::with_service());
    let low = with_company(&scene);
    // Busy for twenty seconds without a gap.
    let high = Actor::enter(scene.run(&IMPORTANT, &["opened", "work", "1", "1000", "20000"]));
    eventually("its queues are inactive", || scene.driver_log().contains(" share 0 "));
    scene.stage.kill_service();
    low.lines.try_iter().for_each(drop);
    for _ in 0..3 {
        low.line();
    }
    drop(high);
}

/// Copies are not launches: a program that waits for one looks as if it had nothing to do, and must not stand still.
#[test]
fn programs_that_wait_for_copies_while_others_have_the_device_come_through() {
    for (refused, level) in [("", 3), ("second", 2)] {
        let scene = Scene::new(Stage::with_service())
            .with("KFD_STANDIN_REFUSE", refused)
            .with("GPU_STREAMOPS_CP_WAIT", "1");
        let readers: Vec<_> =
            (0..2).map(|_| Actor::enter(scene.run(&[], &["linked", "reads", "3", "200", "2000"]))).collect();
        let _high = Actor::enter(scene.run(&IMPORTANT, &["opened", "requests", "1000000", "4", "500", "10"]));
        let _low = with_company(&scene);
        println!("at level {level}");
        Actor::none_stands_still(&readers);
        assert!(scene.stage.status().queues.iter().any(|queue| queue.level == level));
    }
}

#[test]
fn default_streams_are_seen_to_become_idle_and_hold_nobody() {
    for device in ["0", "1"] {
        let scene = Scene::new(Stage::with_service()).with("HIP_STANDIN_DEVICES", "2");
        let work = ["linked", "work", "100000", "6", "500", device];
        let company = Actor::enter(scene.run(&UNIMPORTANT, &work));
        company.line();
        let high = Actor::enter(scene.run(&IMPORTANT, &["opened", "own", device]));
        high.line();
        let tasks = || scene.stage.status().tasks;
        let is_idle = || tasks().iter().any(|task| task.name == "high" && task.state == TaskState::Idle);
        eventually("it is idle, though it never waited", is_idle);
        assert!(tasks().iter().all(|task| task.name != "high" || task.queues == 2), "{:?}", tasks());
        company.lines.try_iter().for_each(drop);
        company.line();
    }
}

#[test]
fn streams_come_and_go() {
    let scene = Scene::new(Stage::with_service());
    let _company = with_company(&scene);
    for priority in ["high", "-50"] {
        let said = said(scene.run(&["--priority", priority], &["opened", "churn", "100"]));
        assert_eq!(said, "100 streams, last error 0\n", "{priority}");
    }
}

#[test]
fn three_priorities_are_three() {
    let scene = Scene::new(Stage::with_service());
    let enter = |priority: &str| {
        let options = ["--priority", priority, "--name", priority];
        Actor::enter(scene.run(&options, &["opened", "work", "100000", "6", "500"]))
    };
    let state = |name: &str| {
        scene.stage.status().tasks.into_iter().find(|task| task.name == name).map(|task| task.state)
    };
    let low = enter("-10");
    low.line();
    let middle = enter("10");
    middle.line();
    eventually("the lowest is held", || state("-10") == Some(TaskState::Held));
    let high = enter("30");
    high.line();
    eventually("two are held", || {
        state("-10") == Some(TaskState::Held) && state("10") == Some(TaskState::Held)
    });
    drop(high);
    eventually("the second has the device", || state("10") != Some(TaskState::Held));
    eventually("the third waits on", || state("-10") == Some(TaskState::Held));
    drop(middle);
    eventually("the third has the device", || state("-10") != Some(TaskState::Held));
}

#[test]
fn the_c_interface_controls_streams_of_every_copy_of_the_runtime() {
    let stage = Stage::with_service();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("capi");
    std::os::unix::fs::symlink(stage.library("libxsched.so"), place.path().join("libxsched.so.0")).unwrap();
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-o"]).arg(&program);
    compiler.arg(root.join("tests/programs/hip/capi.c")).arg("-I").arg(root.join("../../include"));
    // Ours first, as programs that were written for the reference have it; found by the name it has where it is installed.
    compiler.arg(stage.library("libxsched.so")).arg(kit().runtime.join("libamdhip64.so.6"));
    compiler.arg(format!("-Wl,-rpath,{}", place.path().display()));
    let output = compiler.args(["-ldl", "-lpthread"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for table in [true, false] {
        for scheduler in ["APP", "GLB"] {
            let mut scene = Scene::new(Stage::with_service())
                .with("HIP_RUNTIME", kit().other_runtime.join("libamdhip64.so.6"))
                .with("XSCHED_SCHEDULER", scheduler);
            if !table {
                scene = scene.with("HIP_STANDIN_NO_REGISTER", "1");
            }
            let said = said(scene.direct(&[program.to_str().unwrap()]));
            assert_eq!(said, "its own: right\nthe other's: right\n", "{table}, {scheduler}");
        }
    }
}

#[test]
fn compute_units_are_left_free_while_somebody_more_important_is_there() {
    let topology = tempfile::tempdir().unwrap();
    let node = topology.path().join("sys/class/kfd/kfd/topology/nodes/1");
    std::fs::create_dir_all(&node).unwrap();
    std::fs::write(node.join("gpu_id"), "1000\n").unwrap();
    // At 0000:c1:00.0, with 104 units.
    std::fs::write(node.join("properties"), "simd_count 416\nsimd_per_cu 4\nlocation_id 49408\ndomain 0\n")
        .unwrap();
    let masks = |scene: &Scene, pid: u32| {
        let log = scene.driver_log();
        let line = format!("{pid} mask ");
        let of_it = log.lines().filter_map(|text| text.strip_prefix(&line));
        of_it
            .filter_map(|text| text.split_once(" units ").map(|(_, rest)| rest.to_owned()))
            .collect::<Vec<_>>()
    };
    let scene = Scene::new(Stage::with_service())
        .with("KFD_STANDIN_ROOT", topology.path())
        .with("XSCHED_HIP_SPARE_CUS", "25");
    let low = with_company(&scene);
    let pid = low.pid();
    assert!(masks(&scene, pid).is_empty(), "alone, it has them all");
    let high = Actor::enter(scene.run(&IMPORTANT, &["linked", "requests", "100000", "4", "500", "20"]));
    high.line();
    eventually("it leaves a quarter free", || masks(&scene, pid).contains(&"78 good true".to_owned()));
    assert!(masks(&scene, high.pid()).iter().all(|mask| mask == "104 good true"), "the other has them all");
    drop(high);
    let ends_with_all = || masks(&scene, pid).last().is_some_and(|mask| mask == "104 good true");
    eventually("it has them all again", ends_with_all);
    // Who did not ask for it has all, all the time.
    let scene = Scene::new(Stage::with_service()).with("KFD_STANDIN_ROOT", topology.path());
    let _low = with_company(&scene);
    let high = Actor::enter(scene.run(&IMPORTANT, &["linked", "requests", "100000", "4", "500", "20"]));
    high.line();
    eventually("it gives way", || scene.driver_log().contains(" share 0 "));
    assert!(!scene.driver_log().contains(" mask "), "{}", scene.driver_log());
}

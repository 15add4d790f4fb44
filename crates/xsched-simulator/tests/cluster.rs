//! Clusters: traces are read or rejected with a reason, jobs are placed by the rules, and the search finds the smallest cluster.

use std::fmt::Write as _;

use proptest::prelude::*;
use xsched_core::Level;
use xsched_simulator::Progress;
use xsched_simulator::cluster::{
    self, ClusterError, Costs, Generated, Outcome, Placement, Settings, Targets, Trace, Work,
};

fn trace(text: &str) -> Trace {
    Trace::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}

fn settings(costs: Costs, gpus: u32) -> Settings {
    Settings {
        costs,
        gpus,
        gpus_per_node: gpus.min(8),
        gpu_memory_gib: 80.0,
        jobs_per_gpu: 4,
        placement: Placement::Pack,
        targets: Targets { short_job_s: 1.0, ..Targets::default() },
    }
}

fn run(trace: &Trace, settings: &Settings) -> Outcome {
    cluster::run(trace, settings, &Progress::default()).unwrap()
}

fn xsched() -> Costs {
    Costs::xsched(Level::Interrupt)
}

/// A service of 10 ms at 10 % load for 1000 s beside a training of 1000 s.
const SERVICE_AND_TRAINING: &str = "kind,arrival,duration,gpus,utilization,rate,request\n\
    service,0,1000,1,,10,10\n\
    batch,10,1000,1,1.0,,\n";

#[test]
fn second_job_waits_for_an_exclusive_gpu() {
    let trace = trace("arrival,duration,gpus\n0,100,1\n0,100,1\n");
    let alone = run(&trace, &settings(Costs::exclusive(), 1));
    assert!((alone.batch.slowdown_p50 - 1.0).abs() < 1e-6, "{alone:?}");
    assert!((alone.batch.slowdown_p95 - 2.0).abs() < 1e-6, "{alone:?}");
    assert!((alone.batch.wait_p95_s - 100.0).abs() < 1e-6, "{alone:?}");
    assert!(!alone.meets_targets);
    let both = run(&trace, &settings(Costs::exclusive(), 2));
    assert!((both.batch.slowdown_p95 - 1.0).abs() < 1e-6 && both.meets_targets, "{both:?}");
}

#[test]
fn speed_of_a_batch_job_changes_when_another_one_leaves() {
    // Both use a GPU half of the time. Together each is slower by the model; after 1 s the short one has gone.
    let trace = trace("arrival,duration,gpus,utilization\n0,1000,1,0.5\n0,1,1,0.5\n");
    let outcome = run(&trace, &settings(xsched(), 1));
    let longer = outcome.batch.slowdown_p95.max(outcome.batch.slowdown_p50);
    assert!(longer > 1.2, "the short one is slowed down: {outcome:?}");
    let shorter = outcome.batch.slowdown_p95.min(outcome.batch.slowdown_p50);
    assert!((1.0..1.001).contains(&shorter), "the long one catches up: {outcome:?}");
}

#[test]
fn service_and_training_share_a_gpu_only_if_the_service_keeps_its_p99() {
    let trace = trace(SERVICE_AND_TRAINING);
    let on_two = |costs| run(&trace, &settings(costs, 2));
    assert_eq!(on_two(Costs::exclusive()).gpus_in_use_max, 2);
    assert_eq!(on_two(Costs::time_slices()).gpus_in_use_max, 2);
    let shared = on_two(xsched());
    assert_eq!(shared.gpus_in_use_max, 1);
    assert!(shared.services.p99_ratio_max > 1.0 && shared.services.p99_ratio_max <= 1.2, "{shared:?}");
    // 10 % for requests and 0.3 ms for each preemption: the training takes a little longer.
    assert!((1.05..1.2).contains(&shared.batch.slowdown_p95), "{shared:?}");
    // A training of higher priority would starve it.
    let raised =
        SERVICE_AND_TRAINING.replace("request\n", "request,priority\n").replace("10,10\n", "10,10,low\n");
    let raised = Trace::read(raised.replace("1.0,,\n", "1.0,,,high\n").as_bytes()).unwrap();
    assert_eq!(run(&raised, &settings(xsched(), 2)).gpus_in_use_max, 2);
}

#[test]
fn stricter_p99_target_keeps_service_and_training_apart() {
    let trace = trace(SERVICE_AND_TRAINING);
    let mut strict = settings(xsched(), 2);
    strict.targets.service_p99_ratio = 1.001;
    assert_eq!(run(&trace, &strict).gpus_in_use_max, 2);
}

#[test]
fn jobs_whose_memory_does_not_fit_are_not_placed_together() {
    let jobs = |memory: f64| {
        trace(&format!(
            "arrival,duration,gpus,utilization,memory\n0,100,1,0.3,{memory}\n1,100,1,0.3,{memory}\n"
        ))
    };
    assert_eq!(run(&jobs(40.0), &settings(xsched(), 2)).gpus_in_use_max, 1);
    assert_eq!(run(&jobs(41.0), &settings(xsched(), 2)).gpus_in_use_max, 2);
    let needs = cluster::run(&jobs(81.0), &settings(xsched(), 2), &Progress::default()).unwrap_err();
    assert!(
        needs.to_string().starts_with("line 2: the job needs 81 GiB on each GPU, a GPU has 80 GiB"),
        "{needs}"
    );
}

#[test]
fn placement_rules_choose_different_gpus() {
    let trace = trace("arrival,duration,gpus,utilization\n0,100,1,0.2\n1,100,1,0.2\n2,100,1,0.2\n");
    for (rule, in_use) in [(Placement::FirstFit, 1), (Placement::Pack, 1), (Placement::Spread, 3)] {
        let outcome = run(&trace, &Settings { placement: rule, ..settings(xsched(), 8) });
        assert_eq!(outcome.gpus_in_use_max, in_use, "{rule}");
    }
}

#[test]
fn large_job_starts_although_small_ones_keep_arriving() {
    // A small job every 10 s, which keeps 7 or 8 of 8 GPUs busy, and one job that needs all of them. It is the only service,
    // so that its wait is in the result.
    let mut text = String::from("arrival,duration,gpus,rate,request\n");
    for n in 0..2000 {
        let _ = writeln!(text, "{},{},1,,", n * 10, 71 + n % 7);
    }
    text += "1000,100,8,1,10\n";
    let outcome = run(&trace(&text), &settings(Costs::exclusive(), 8));
    assert_eq!((outcome.unfinished_jobs, outcome.gpus_in_use_max), (0, 8));
    // Its node is reserved, and the small jobs that run there end within 77 s. Otherwise it would start after the last small
    // job, 19,000 s later.
    assert!((1.0..78.0).contains(&outcome.services.wait_p99_s), "{outcome:?}");
}

#[test]
fn job_of_several_nodes_gets_whole_nodes() {
    let trace = trace("arrival,duration,gpus\n0,100,20\n1,100,4\n2,100,8\n");
    let outcome = run(&trace, &Settings { gpus_per_node: 8, ..settings(Costs::exclusive(), 24) });
    // 20 + 4 fit; the 8 wait until both are done.
    assert_eq!(outcome.gpus_in_use_max, 24);
    assert!((outcome.batch.wait_p95_s - 98.0).abs() < 1e-3, "{outcome:?}");
}

#[test]
fn job_larger_than_the_cluster_is_rejected() {
    let trace = trace("arrival,duration,gpus\n0,100,1\n0,100,64\n");
    let error = cluster::run(&trace, &settings(Costs::exclusive(), 8), &Progress::default()).unwrap_err();
    assert_eq!(error, ClusterError::JobTooLarge { line: 3, needs: 64, gpus: 8 });
    let part = Settings { gpus_per_node: 8, ..settings(Costs::exclusive(), 12) };
    let error = cluster::run(&trace, &part, &Progress::default()).unwrap_err();
    assert_eq!(error, ClusterError::PartOfNode { gpus: 12, per_node: 8 });
}

#[test]
fn search_finds_the_boundary() {
    let mut text = Vec::new();
    cluster::generate(&Generated { jobs: 2_000, days: 2.0, seed: 5 }, &mut text).unwrap();
    let trace = Trace::read(&text[..]).unwrap();
    let needed = |costs| {
        let settings = Settings { targets: Targets::default(), ..settings(costs, 8) };
        let found = cluster::needed_gpus(&trace, &settings, &Progress::default()).unwrap();
        let at = |gpus| run(&trace, &Settings { gpus, ..settings.clone() }).meets_targets;
        assert!(at(found.outcome.gpus), "{found:?}");
        assert!(!at(found.gpus_too_few), "{found:?}");
        assert!(found.outcome.gpus - found.gpus_too_few <= 8, "{found:?}");
        found.outcome.gpus
    };
    let (exclusive, time_slices, shared) =
        (needed(Costs::exclusive()), needed(Costs::time_slices()), needed(xsched()));
    assert!(shared < time_slices && time_slices <= exclusive, "{shared}, {time_slices}, {exclusive}");
}

#[test]
fn trace_columns_are_found_by_name() {
    let trace = trace(
        "\u{feff}Name,GPUs,col\u{202e}or,arrival,work,kind,utilization,rate,request,priority,arrivals\r\n\
         \"a, b\",4,red,20,100,,0.5,,,,\r\n\
         s,2,blue,10,,service,0.2,,5,normal,periodic\r\n\
         \r\n"
            .replace("10,,service", "10,40,service")
            .as_str(),
    );
    assert_eq!(trace.ignored_columns, ["color"]);
    assert_eq!(trace.without_memory, 2);
    let [service, batch] = &trace.jobs[..] else { panic!("{trace:?}") };
    assert_eq!((service.line, service.arrival_s, service.gpus, service.priority), (3, 10.0, 2, 0));
    let Work::Service { rate, request_s, is_periodic } = service.work else { panic!("{service:?}") };
    assert!((rate - 40.0).abs() < 1e-3 && (request_s - 0.005).abs() < 1e-6 && is_periodic);
    // 100 GPU-seconds of work on 4 GPUs that are used half of the time.
    assert!((batch.duration_s - 50.0).abs() < 1e-9 && batch.priority < 0, "{batch:?}");
    assert_eq!(batch.work, Work::Batch { utilization: 0.5 });
}

#[test]
fn bad_traces_are_rejected_with_line_and_reason() {
    let header = "arrival,duration,gpus,utilization,kind,rate,request,memory,priority\n";
    let cases = [
        (String::new(), "the trace has no jobs"),
        ("arrival,duration,gpus\n".to_owned(), "the trace has no jobs"),
        ("duration,gpus\n1,1\n".to_owned(), "line 1: there is no column `arrival`"),
        ("arrival,gpus\n1,1\n".to_owned(), "line 1: there is no column `duration` and none `work`"),
        ("arrival,gpus,Arrival\n1,1\n".to_owned(), "line 1: column `arrival` occurs twice"),
        ("arrival,duration,work,gpus\n1,1,1,1\n".to_owned(), "line 2: duration and work are both given"),
        (format!("{header}-1,1,1,,,,,,\n"), "line 2: arrival -1 is out of range: allowed is 0 to 3200000000"),
        (format!("{header}1,x,1,,,,,,\n"), "line 2: duration `x` is not a number"),
        (format!("{header}1,NaN,1,,,,,,\n"), "line 2: duration NaN is out of range"),
        (format!("{header}1,1,0,,,,,,\n"), "line 2: gpus 0 is out of range: allowed is 1 to 100000"),
        (format!("{header}1,1,0.5,,,,,,\n"), "line 2: gpus 0.5 is out of range"),
        (format!("{header}1,1,1.5,,,,,,\n"), "line 2: gpus 1.5 is not a whole number"),
        (format!("{header}1,1,1,2,,,,,\n"), "line 2: utilization 2 is out of range: allowed is 0.001 to 1"),
        (format!("{header}1,1,1,,cron,,,,\n"), "line 2: kind `cron` is unknown: allowed is service or batch"),
        (
            format!("{header}1,1,1,,service,5,,,\n"),
            "line 2: a service needs two of rate, request and utilization",
        ),
        (format!("{header}1,1,1,,service,100,10,,\n"), "line 2: its requests need 100 % of its GPUs' time"),
        (format!("{header}1,1,1,,batch,5,,,\n"), "line 2: a batch job has no rate"),
        (format!("{header}1,1,1,,,,,-4,\n"), "line 2: memory -4 is out of range"),
        (format!("{header}1,1,1,,,,,,urgent\n"), "line 2: priority `urgent`"),
        (format!("{header}1,1\n"), "line 2: the row has 2 cells, the header has 9"),
        (format!("{header}\"1,1\n"), "line 2: a quotation mark is not closed"),
    ];
    for (text, expected) in cases {
        let error = Trace::read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn errors_of_many_rows_are_counted() {
    let text = format!("arrival,duration,gpus\n0,1,1\n{}", "0,-1,1\n".repeat(100));
    let error = Trace::read(text.as_bytes()).unwrap_err().to_string();
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), 21, "{error}");
    assert!(
        lines[0].starts_with("line 3: duration -1 is out of range") && lines[19].starts_with("line 22: ")
    );
    assert_eq!(lines[20], "and 80 more rows with errors");
}

#[test]
fn bytes_that_are_no_text_are_an_error() {
    let error = Trace::read(&b"arrival,duration,gpus\n\xff\xfe\n"[..]).unwrap_err().to_string();
    assert!(error.starts_with("cannot read line 2: "), "{error}");
}

fn generated(seed: u64) -> Vec<u8> {
    let mut text = Vec::new();
    cluster::generate(&Generated { jobs: 20_000, days: 4.0, seed }, &mut text).unwrap();
    text
}

#[test]
fn generated_trace_depends_only_on_the_seed_and_has_days_and_a_heavy_tail() {
    let text = generated(1);
    assert_eq!(text, generated(1));
    assert_ne!(text, generated(2));
    let trace = Trace::read(&text[..]).unwrap();
    assert_eq!(trace.jobs.len(), 20_000);
    assert!(trace.ignored_columns.is_empty() && trace.without_memory == 0);
    let in_hours = |from: f64, to: f64| {
        trace.jobs.iter().filter(|job| (from..to).contains(&((job.arrival_s / 3_600.0) % 24.0))).count()
    };
    assert!(in_hours(12.0, 18.0) > 3 * in_hours(0.0, 6.0), "more jobs by day than by night");
    let mut durations: Vec<_> = trace
        .jobs
        .iter()
        .filter(|job| matches!(job.work, Work::Batch { .. }))
        .map(|job| job.duration_s)
        .collect();
    durations.sort_by(f64::total_cmp);
    let mean = durations.iter().sum::<f64>() / durations.len() as f64;
    assert!(mean > 3.0 * durations[durations.len() / 2], "a few long jobs dominate");
}

#[test]
fn report_is_one_page_with_pictures_and_assumptions() {
    let trace = trace(SERVICE_AND_TRAINING);
    let settings = settings(xsched(), 2);
    let rows = [cluster::Row { name: "XSched <level 3>".into(), outcome: run(&trace, &settings) }];
    let page =
        cluster::report("GPUs & more", &rows, &cluster::assumptions(&[rows[0].name.clone()], &[settings]));
    assert_eq!(page.matches("<svg").count(), 2, "{page}");
    assert!(page.contains("XSched &lt;level 3&gt;") && page.contains("GPUs &amp; more"), "{page}");
    assert!(page.contains("Assumptions") && page.contains("times that alone"), "{page}");
    assert!(page.contains("XSched &lt;level 3&gt;, policy priority: a request waits 0.16 ms"), "{page}");
    assert!(!page.contains("http") && !page.contains("NaN"), "{page}");
}

/// A row of a random trace.
fn row() -> impl Strategy<Value = String> {
    let batch = (0_u32..2_000, 1_u32..800, 1_u32..=12, 5_u32..=100, 0_u32..80, -2_i16..=2).prop_map(
        |(arrival, duration, gpus, utilization, memory, priority)| {
            format!("{arrival},{duration},{gpus},{},{memory},{priority},,", f64::from(utilization) / 100.0)
        },
    );
    let service = (0_u32..2_000, 1_u32..800, 1_u32..=3, 1_u32..60, 1_u32..50, 0_u32..40).prop_map(
        |(arrival, duration, gpus, load, request, memory)| {
            let rate = f64::from(gpus) * f64::from(load) / 100.0 / (f64::from(request) / 1e3);
            format!("{arrival},{duration},{gpus},,{memory},1,{rate},{request}")
        },
    );
    prop_oneof![3 => batch, 1 => service]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Every job runs to its end, none faster than alone, no service above its target, no GPU used above its capacity.
    #[test]
    fn every_job_completes_within_the_limits(rows in prop::collection::vec(row(), 1..120), rule in 0_usize..3, way in 0_usize..5) {
        let header = "arrival,duration,gpus,utilization,memory,priority,rate,request\n";
        let trace = Trace::read(format!("{header}{}\n", rows.join("\n")).as_bytes()).unwrap();
        let levels = [Level::Block, Level::Deactivate, Level::Interrupt];
        let costs = match way {
            0 => Costs::exclusive(),
            1 => Costs::time_slices(),
            level => Costs::xsched(levels[level - 2]),
        };
        let settings = Settings { gpus_per_node: 4, placement: Placement::ALL[rule], ..settings(costs, 12) };
        let outcome = run(&trace, &settings);
        prop_assert_eq!(outcome.unfinished_jobs, 0);
        prop_assert!(outcome.batch.jobs == 0 || outcome.batch.slowdown_p50 >= 1.0);
        prop_assert!(outcome.services.p99_ratio_max <= settings.targets.service_p99_ratio + 1e-9);
        prop_assert!(outcome.gpus_in_use_max <= 12);
        prop_assert!(outcome.utilization_over_time.iter().all(|used| (-1e-9..=1.0 + 1e-9).contains(used)), "{:?}", outcome);
        prop_assert_eq!(&outcome, &run(&trace, &settings));
    }

    /// Any text after a valid header is read or rejected, with every extreme that a row may have.
    #[test]
    fn any_text_is_read_or_rejected(
        text in "(((-|)[0-9]{1,12}(\\.[0-9]{1,3}|e9|)|NaN|inf|\"|low|service|[a-z\u{0}\u{e9}]{0,3}|),){6}[0-9]{0,4}(\n|\r\n|)|.{0,20}\n"
    ) {
        let header = "arrival,duration,gpus,utilization,kind,rate,request\n";
        if let Ok(trace) = Trace::read(format!("{header}{text}").as_bytes()) {
            let gpus = trace.jobs.iter().map(|job| job.gpus).max().unwrap_or(1);
            let outcome = run(&trace, &Settings { gpus_per_node: 1, ..settings(xsched(), gpus) });
            prop_assert_eq!(outcome.unfinished_jobs, 0);
        }
    }
}

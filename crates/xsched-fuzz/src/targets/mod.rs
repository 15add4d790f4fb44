//! The targets. Each reads input that an unprivileged user or another machine may have made.

mod config;
mod environment;
mod http;
mod jobs;
mod message;
mod page;
mod service;
mod simulation;
mod steps;
mod trace;

/// Runs one input. A panic is a failure.
pub(crate) type Run = Box<dyn FnMut(&[u8])>;

/// What is run on random input.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Words that random changes insert.
    pub(crate) words: &'static [&'static str],
    pub(crate) start: fn() -> Run,
}

/// Fails on purpose, to test the engine.
pub(crate) const CHECK: Target = Target {
    name: "check",
    about: "fails on input that contains the word fail",
    words: &["l"],
    start: || Box::new(|input| assert!(!input.windows(4).any(|window| window == b"fail"), "the word fail")),
};

/// All targets.
pub(crate) const TARGETS: &[Target] = &[
    Target {
        name: "message",
        about: "requests and replies on the socket of the service: decoding",
        words: message::WORDS,
        start: message::start,
    },
    Target {
        name: "service",
        about: "packets of several connections to a running service",
        words: message::WORDS,
        start: service::start,
    },
    Target {
        name: "page",
        about: "the pages of malicious processes, as the scheduler reads them",
        words: &[],
        start: page::start,
    },
    Target {
        name: "http",
        about: "HTTP requests, and which callers may send them",
        words: http::WORDS,
        start: http::start,
    },
    Target { name: "config", about: "the configuration file", words: config::WORDS, start: config::start },
    Target {
        name: "simulation",
        about: "simulation files, and the simulation if it is short",
        words: simulation::WORDS,
        start: simulation::start,
    },
    Target {
        name: "jobs",
        about: "traces of jobs, and their simulation on a small cluster",
        words: jobs::WORDS,
        start: jobs::start,
    },
    Target {
        name: "environment",
        about: "the environment variables of a program",
        words: environment::WORDS,
        start: environment::start,
    },
    Target { name: "trace", about: "conversion of events to a trace", words: &[], start: trace::start },
];

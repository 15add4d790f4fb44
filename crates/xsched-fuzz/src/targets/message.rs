//! The messages on the socket of the service.

use xsched_core::Hints;
use xsched_ipc::protocol::{HintRequest, Reply, Request};

use super::Run;

pub(super) const WORDS: &[&str] = &[
    "{\"request\":\"join\",\"args\":{\"protocol\":3,\"version\":\"1\",\"name\":null,\"hint_request\":{}}}",
    "{\"request\":\"status\"}",
    "{\"request\":\"metrics\"}",
    "{\"request\":\"trace\"}",
    "{\"request\":\"expect\"}",
    "{\"request\":\"hint\",\"args\":{\"priority\":-3}}",
    "{\"request\":\"queue_hint\",\"args\":{\"slot\":0,\"hint_request\":{}}}",
    "{\"request\":\"set\",\"args\":{\"target\":{\"pid\":1},\"hint_request\":{}}}",
    "{\"request\":\"set_own\",\"args\":{}}",
    "{\"request\":\"set_queue\",\"args\":{\"queue\":1,\"hint_request\":{}}}",
    "{\"request\":\"suspend\",\"args\":{\"name\":\"a\"}}",
    "{\"request\":\"resume\",\"args\":{\"pid\":1}}",
    "{\"request\":\"park\",\"args\":{\"pid\":1}}",
    "{\"request\":\"unpark\",\"args\":{\"name\":\"a\"}}",
    "{\"request\":\"parking\",\"args\":{\"pid\":1}}",
    "{\"request\":\"policy\",\"args\":{\"name\":\"fair\",\"timeslice_us\":null,\"k\":null}}",
    "{\"request\":\"configure\",\"args\":{\"queue\":1,\"settings\":{\"level\":1}}}",
    "{\"request\":\"focus\",\"args\":null}",
    "{\"request\":\"jobs\",\"args\":[{\"name\":\"a\"}]}",
    "{\"request\":\"act_for\",\"args\":{\"user\":1000}}",
    "{\"request\":\"act_for\",\"args\":\"unknown\"}",
    "{\"request\":\"grant\",\"args\":{\"name\":\"a\",\"cgroup\":\"/a\",\"token\":\"0123456789abcdef0123456789abcdef\"}}",
    "{\"request\":\"revoke\",\"args\":\"a\"}",
    "{\"request\":\"grants\"}",
    "{\"request\":\"suspend_grant\",\"args\":{\"name\":\"a\",\"is_suspended\":true}}",
    "\"grant_token\":\"0123456789abcdef0123456789abcdef\"",
    "\"memory_group\":\"a\"",
    "\"memory\":1048576",
    "\"is_job\":true",
    "\"labels\":{\"a\":\"b\"}",
    "\"until_exit_of\":",
    "\"priority\":",
    "\"share\":",
    "\"deadline_us\":",
    "\"laxity\":[5,1,2]",
    "\"communicator\":\"00000000000000000000000000000000\"",
    "\"launcher\":",
    "null",
    "true",
    "-1",
    "1e309",
    "\\u0000",
    "\\ud800",
    "\u{202e}",
    "!",
];

pub(super) fn start() -> Run {
    Box::new(|input| {
        if let Ok(request) = serde_json::from_slice::<Request>(input) {
            let text = serde_json::to_vec(&request).expect("a request can be written");
            assert_eq!(serde_json::from_slice::<Request>(&text).expect("it can be read again"), request);
            check(&request);
        }
        if let Ok(reply) = serde_json::from_slice::<Reply>(input) {
            let text = serde_json::to_vec(&reply).expect("a reply can be written");
            assert_eq!(serde_json::from_slice::<Reply>(&text).expect("it can be read again"), reply);
        }
    })
}

fn check(request: &Request) {
    match request {
        Request::Join { hint_request, .. } | Request::Hint(hint_request) | Request::SetOwn(hint_request) => {
            check_hints(hint_request);
        }
        Request::Set { hint_request, .. }
        | Request::QueueHint { hint_request, .. }
        | Request::SetQueue { hint_request, .. } => check_hints(hint_request),
        Request::Grant(grant) => {
            let message = grant.validate().err().unwrap_or_default();
            // A message for the user has one line, and reveals no token.
            let reveals = |token: &String| token.len() >= 8 && message.contains(token.as_str());
            assert!(!message.contains('\n') && !grant.token.as_ref().is_some_and(reveals), "{message:?}");
        }
        Request::Jobs(keys) => {
            for key in keys {
                let label = key.label();
                assert!(
                    key.validate().is_err() || !label.is_empty() && !label.contains(char::is_control),
                    "{label:?}"
                );
            }
        }
        _ => {}
    }
}

/// What was granted can be requested again, with the same result.
fn check_hints(hint_request: &HintRequest) {
    if let Ok(hints) = hint_request.applied_to(Hints::default()) {
        let again = HintRequest::from_hints(hints).applied_to(Hints::default());
        assert_eq!(again, Ok(hints), "{hint_request:?}");
    }
}

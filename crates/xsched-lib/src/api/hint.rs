//! Hints: what the program tells its scheduler. Each counts when its function returns.

use xsched_core::Timeslice;
use xsched_ipc::protocol::HintRequest;
use xsched_policy::POLICIES;

use super::failure::{Answer, Failure};
use super::types::{
    TIMESLICE_MAX, XPolicyType, XQueueHandle, XSchedulerType, int32_t, int64_t, kSchedulerAppManaged,
    kSchedulerGlobal, kSchedulerLocal, size_t,
};
use super::{api, xqueue};
use crate::runtime::{Runtime, runtime_for_api};

api! {
    /// Chooses who schedules the program's XQueues, now and while they run: the program itself, a scheduler inside the
    /// process with this policy, or the service, which has its own policy. Hints given before go along.
    fn XHintSetScheduler(scheduler: XSchedulerType, policy: XPolicyType) = set_scheduler;

    /// How important the queue is, PRIORITY_MIN to PRIORITY_MAX; with PRIORITY_NO_EXECUTE it does not run at all.
    ///
    /// Queues of a program are scheduled together until one of them is given a hint of its own. The service may refuse
    /// more than the user is allowed, with kXSchedErrorNotAllowed.
    fn XHintPriority(xq: XQueueHandle, prio: int32_t) = priority;

    /// The queue's share of the device in percent, UTILIZATION_MIN to UTILIZATION_MAX.
    fn XHintUtilization(xq: XQueueHandle, util: int32_t) = share;

    /// The length of a turn in microseconds, TIMESLICE_MIN to TIMESLICE_MAX, for policies that take turns.
    /// TIMESLICE_UNLIMITED counts as TIMESLICE_MAX. The service's is changed only where the service allows it.
    fn XHintTimeslice(ts_us: int64_t) = timeslice;

    /// How long the queue can wait, and its priority before and after; NO_LAXITY takes it back.
    fn XHintLaxity(xq: XQueueHandle, lax_us: int64_t, lax_prio: int32_t, crit_prio: int32_t) = laxity;

    /// How long the queue may take from the moment it has work, in microseconds; NO_DEADLINE takes it back.
    fn XHintDeadline(xq: XQueueHandle, ddl_us: int64_t) = deadline;

    /// How many queues run at once under kPolicyKEarliestDeadlineFirst, 1 or more.
    fn XHintKDeadline(k: size_t) = k_deadline;
}

fn runtime() -> Answer<&'static Runtime> {
    runtime_for_api().ok_or_else(Failure::over)
}

fn set_scheduler(scheduler: XSchedulerType, policy: XPolicyType) -> Answer {
    let client = runtime()?.client();
    match scheduler {
        kSchedulerAppManaged => client.use_no_scheduler(),
        kSchedulerLocal => {
            let number = u32::try_from(policy).ok();
            let known = POLICIES.iter().find(|known| Some(known.number) == number);
            let known = known.ok_or_else(|| {
                let numbers: Vec<_> = POLICIES.iter().map(|known| known.number.to_string()).collect();
                Failure::invalid(format_args!(
                    "policy {policy} does not exist: allowed is {}",
                    numbers.join(", ")
                ))
            })?;
            client.use_local_scheduler(known, client.params(), runtime()?.environment().hints())?;
        }
        kSchedulerGlobal => client.use_service(runtime()?.client_info())?,
        _ => {
            return Err(Failure::invalid(format_args!(
                "scheduler {scheduler} does not exist: allowed is 1 (the program), 2 (local) and 3 (the service)"
            )));
        }
    }
    Ok(())
}

fn hint(xq: XQueueHandle, hint_request: &HintRequest) -> Answer {
    Ok(xqueue::get(xq)?.joined().hint(hint_request)?)
}

fn priority(xq: XQueueHandle, prio: int32_t) -> Answer {
    hint(xq, &HintRequest { priority: Some(prio.into()), ..HintRequest::default() })
}

fn share(xq: XQueueHandle, util: int32_t) -> Answer {
    hint(xq, &HintRequest { share: Some(util.into()), ..HintRequest::default() })
}

fn laxity(xq: XQueueHandle, lax_us: int64_t, lax_prio: int32_t, crit_prio: int32_t) -> Answer {
    hint(
        xq,
        &HintRequest { laxity: Some((lax_us, lax_prio.into(), crit_prio.into())), ..HintRequest::default() },
    )
}

fn deadline(xq: XQueueHandle, ddl_us: int64_t) -> Answer {
    hint(xq, &HintRequest { deadline_us: Some(ddl_us), ..HintRequest::default() })
}

fn timeslice(ts_us: int64_t) -> Answer {
    let unlimited = ts_us == u64::MAX.cast_signed();
    let timeslice = Timeslice::from_micros(if unlimited { TIMESLICE_MAX } else { ts_us })?;
    Ok(runtime()?.client().configure(|params| params.timeslice = timeslice)?)
}

fn k_deadline(k: size_t) -> Answer {
    if k == 0 {
        return Err(Failure::invalid("k 0 is out of range: allowed is 1 and more"));
    }
    Ok(runtime()?.client().configure(|params| params.k = k)?)
}

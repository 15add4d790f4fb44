//! Hints of the program for the scheduler. A hint is in effect when its function returns.

use xsched_core::Timeslice as TimesliceValue;
use xsched_ipc::protocol::HintRequest;
use xsched_policy::POLICIES;

use super::failure::{ApiResult, Failure};
use super::types::{
    Deadline, Laxity, Priority, TIMESLICE_MAX, Timeslice, Utilization, XPolicyType, XQueueHandle,
    XSchedulerType, kSchedulerAppManaged, kSchedulerGlobal, kSchedulerLocal, size_t,
};
use super::{api, xqueue};
use crate::runtime::{Runtime, runtime_for_api};

api! {
    /// Selects the scheduler of the program's XQueues, also while they run: the program itself, a scheduler inside the
    /// process with this policy, or the service, which has its own policy. Earlier hints stay in effect.
    fn XHintSetScheduler(scheduler: XSchedulerType, policy: XPolicyType) = set_scheduler;

    /// Sets the priority of the queue, PRIORITY_MIN to PRIORITY_MAX. A queue with PRIORITY_NO_EXECUTE does not run.
    ///
    /// The queues of a program are one task until one of them gets a hint of its own. kXSchedErrorNotAllowed if the service
    /// does not allow the user this priority.
    fn XHintPriority(xq: XQueueHandle, prio: Priority) = priority;

    /// Requests a share of the device for the queue, in percent, UTILIZATION_MIN to UTILIZATION_MAX.
    fn XHintUtilization(xq: XQueueHandle, util: Utilization) = share;

    /// Sets the time slice in microseconds, TIMESLICE_MIN to TIMESLICE_MAX, for policies with time slices.
    /// TIMESLICE_UNLIMITED stands for TIMESLICE_MAX. The service changes its time slice only if its configuration allows it.
    fn XHintTimeslice(ts_us: Timeslice) = timeslice;

    /// Sets how long the queue's work can wait, in microseconds, and its priority before and after that time. NO_LAXITY removes
    /// the hint.
    fn XHintLaxity(xq: XQueueHandle, lax_us: Laxity, lax_prio: Priority, crit_prio: Priority) = laxity;

    /// Sets the deadline of the queue's work in microseconds after the queue becomes busy. NO_DEADLINE removes the hint.
    fn XHintDeadline(xq: XQueueHandle, ddl_us: Deadline) = deadline;

    /// Sets how many queues run at once under kPolicyKEarliestDeadlineFirst, at least 1.
    fn XHintKDeadline(k: size_t) = k_deadline;
}

fn runtime() -> ApiResult<&'static Runtime> {
    runtime_for_api().ok_or_else(Failure::process_exiting)
}

fn set_scheduler(scheduler: XSchedulerType, policy: XPolicyType) -> ApiResult {
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

fn hint(xq: XQueueHandle, hint_request: &HintRequest) -> ApiResult {
    Ok(xqueue::get(xq)?.scheduled().hint(hint_request)?)
}

fn priority(xq: XQueueHandle, prio: Priority) -> ApiResult {
    hint(xq, &HintRequest { priority: Some(prio.into()), ..HintRequest::default() })
}

fn share(xq: XQueueHandle, util: Utilization) -> ApiResult {
    hint(xq, &HintRequest { share: Some(util.into()), ..HintRequest::default() })
}

fn laxity(xq: XQueueHandle, lax_us: Laxity, lax_prio: Priority, crit_prio: Priority) -> ApiResult {
    hint(
        xq,
        &HintRequest { laxity: Some((lax_us, lax_prio.into(), crit_prio.into())), ..HintRequest::default() },
    )
}

fn deadline(xq: XQueueHandle, ddl_us: Deadline) -> ApiResult {
    hint(xq, &HintRequest { deadline_us: Some(ddl_us), ..HintRequest::default() })
}

fn timeslice(ts_us: Timeslice) -> ApiResult {
    let unlimited = ts_us == u64::MAX.cast_signed();
    let timeslice = TimesliceValue::from_micros(if unlimited { TIMESLICE_MAX } else { ts_us })?;
    Ok(runtime()?.client().configure(|params| params.timeslice = timeslice)?)
}

fn k_deadline(k: size_t) -> ApiResult {
    if k == 0 {
        return Err(Failure::invalid("k 0 is out of range: allowed is 1 and more"));
    }
    Ok(runtime()?.client().configure(|params| params.k = k)?)
}

//! Requests to move the device memory of processes to the host and back.

use xsched_core::{Nanos, ProcessId};

use super::Service;
use super::peer::Peer;
use super::requests::HandlerResult;
use crate::coordinator::{ClientId, ParkingReport};
use crate::page::Staying;
use crate::protocol::{ParkingStatus, Reply, Target};

impl Service {
    /// Orders processes to park, or to bring their memory back. Of several processes of a name those that cannot are left out.
    pub(super) fn park(&mut self, peer: Peer, target: &Target, parks: bool, now: Nanos) -> HandlerResult {
        let mut refusal = None;
        let mut orders = Vec::new();
        for (client, process) in self.targets(peer, target)? {
            match check(self.coordinator.parking(client), process, parks) {
                Ok(is_needed) => orders.push((client, process, is_needed)),
                Err(why) => refusal = Some(why),
            }
        }
        if let Some(why) = refusal.filter(|_| orders.is_empty()) {
            return Err(why);
        }
        for (client, _, is_needed) in &orders {
            if *is_needed {
                self.coordinator.set_parked(*client, parks, now);
            }
        }
        self.is_decision_due = true;
        Ok(self.parking_of(orders.into_iter().map(|(client, process, _)| (client, process))))
    }

    /// Reports where the memory of processes is.
    pub(super) fn report_parking(&self, peer: Peer, target: &Target) -> HandlerResult {
        let targets = self.targets(peer, target)?;
        Ok(self.parking_of(targets))
    }

    fn parking_of(&self, processes: impl IntoIterator<Item = (ClientId, ProcessId)>) -> Reply {
        let report = |(client, process): (ClientId, ProcessId)| {
            self.coordinator.parking(client).map(|report| parking_status(process.0, &report))
        };
        Reply::Parking(processes.into_iter().filter_map(report).collect())
    }
}

/// Whether the order is needed, or why a process cannot carry it out.
fn check(report: Option<ParkingReport>, process: ProcessId, parks: bool) -> Result<bool, String> {
    let pid = process.0;
    match (report, parks) {
        (None, true) => Err(format!(
            "process {pid} cannot be parked: it was not started with `xsched run --swap`, or has allocated no device memory yet"
        )),
        (Some(report), true) => Ok(!report.is_parked() || !report.order.parks),
        (Some(report), false) if report.is_parked() => Ok(report.order.parks),
        (_, false) => Err(format!("process {pid} is not parked")),
    }
}

/// The status of a process in messages.
pub(super) fn parking_status(pid: u32, report: &ParkingReport) -> ParkingStatus {
    let failure = report.published.failure.filter(|_| report.is_settled());
    ParkingStatus {
        pid,
        is_parked: report.is_parked(),
        is_settled: report.is_settled(),
        movable_bytes: report.published.movable,
        moved_bytes: report.published.moved.min(report.published.movable),
        held_threads: report.published.held_threads,
        stays: report.published.staying().map(Staying::name).map(str::to_owned).collect(),
        failure: failure.map(|failure| failure.text().to_owned()),
    }
}

//! The listing of grants, in packets.

use std::collections::HashMap;

use super::super::Service;
use super::super::peer::Peer;
use super::super::session::Session;
use super::{Confinement, Entry, GrantId};
use crate::protocol::{Grant, GrantStatus, Reply};
use crate::socket::MAX_PACKET_SIZE;

/// How many bytes of grants a packet has, besides those of one grant.
const MAX_BYTES_PER_PACKET: usize = MAX_PACKET_SIZE / 2;
/// How many processes of a grant are listed. With them a grant has less than half of a packet.
const MAX_PROCESSES_LISTED: usize = 1_024;

impl Service {
    /// The packet with the grants after the one named `position` as the peer may see them, and the position of the next packet if
    /// there is one.
    pub(in super::super) fn grants_packet(
        &self,
        peer: Peer,
        sees_all: bool,
        position: &str,
    ) -> (Vec<u8>, Option<String>) {
        let processes = self.processes_by_grant(peer, sees_all);
        let mut grants: Vec<GrantStatus> = Vec::new();
        let mut next = None;
        let mut size = 0;
        for entry in self.grants.after(position) {
            let pids = processes.get(&entry.id);
            let is_own = match peer.confinement {
                Confinement::Grant(own) => own == entry.id,
                _ => entry.grant.uid == Some(peer.uid) || pids.is_some(),
            };
            if !sees_all && !is_own {
                continue;
            }
            let status = status(entry, pids.cloned().unwrap_or_default());
            size += serde_json::to_vec(&status).map_or(0, |text| text.len());
            if size > MAX_BYTES_PER_PACKET && !grants.is_empty() {
                next = grants.last().map(|last| last.grant.name.clone());
                break;
            }
            grants.push(status);
        }
        let reply = Reply::Grants { grants, more: next.is_some() };
        // Cannot fail: a reply has no map whose keys are not text.
        (serde_json::to_vec(&reply).unwrap_or_default(), next)
    }

    /// The processes that the peer may see, by grant.
    fn processes_by_grant(&self, peer: Peer, sees_all: bool) -> HashMap<GrantId, Vec<u32>> {
        let mut processes = HashMap::<GrantId, Vec<u32>>::new();
        let visible = |session: &&Session| sees_all || peer.may_see(session.peer);
        for process in self.sessions.iter().filter(visible).filter_map(Session::process) {
            if let Some(grant) = process.grant {
                let pids = processes.entry(grant).or_default();
                if pids.len() < MAX_PROCESSES_LISTED && !pids.contains(&process.pid) {
                    pids.push(process.pid);
                }
            }
        }
        processes
    }
}

fn status(entry: &Entry, mut processes: Vec<u32>) -> GrantStatus {
    processes.sort_unstable();
    GrantStatus {
        grant: Grant { token: None, ..entry.grant.clone() },
        has_token: entry.token.is_some(),
        is_suspended: entry.is_suspended,
        processes,
    }
}

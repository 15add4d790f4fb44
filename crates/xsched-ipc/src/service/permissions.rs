//! Permissions. As with `nice`, every user may lower the priority of their own processes.
//!
//! The kernel reports the user at the other end of a socket. Administrators may do everything: root, members of the group
//! `xsched`, and the user that the service runs as. All other users may read the status, and may raise their own processes up to
//! their limit. Processes of a grant or of a confined control group are never administrators ([`Confinement`]).
//!
//! [`Confinement`]: super::grants::Confinement

use xsched_core::{Hints, Priority, Share};

use super::Service;
use super::peer::Peer;

/// Members of this group are administrators.
pub const GROUP: &str = "xsched";

/// The highest hints that one user may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The highest priority.
    pub priority: Priority,
    /// The largest share.
    pub share: Share,
}

impl Default for Limit {
    fn default() -> Self {
        Self { priority: Priority::DEFAULT, share: Share::DEFAULT }
    }
}

impl Limit {
    /// No limit.
    pub const NONE: Self = Self { priority: Priority::MAX, share: Share::DEFAULT };

    /// This limit, raised to the current hints: a task may keep what an administrator has set.
    pub(super) fn or_current(self, current: Hints) -> Self {
        let laxity = current.laxity.map_or(Priority::NO_EXECUTE, |laxity| laxity.lax.max(laxity.critical));
        Self {
            priority: self.priority.max(current.priority).max(laxity),
            share: self.share.max(current.share),
        }
    }

    /// Clamps hints to the limit. Also returns a description of the values above it; `outcome` is what happened to them, for
    /// example "was granted".
    pub(super) fn clamp(self, mut hints: Hints, outcome: &str) -> (Hints, Option<String>) {
        let mut clamped = Vec::new();
        let mut clamp_priority = |name: &str, priority: &mut Priority| {
            if *priority > self.priority {
                clamped.push(format!("{name} {priority} was requested, {} {outcome}", self.priority));
                *priority = self.priority;
            }
        };
        clamp_priority("priority", &mut hints.priority);
        if let Some(laxity) = &mut hints.laxity {
            clamp_priority("the laxity's first priority", &mut laxity.lax);
            clamp_priority("the laxity's critical priority", &mut laxity.critical);
        }
        if hints.share > self.share {
            let (requested, granted) = (hints.share.percent(), self.share.percent());
            clamped.push(format!("share {requested} % was requested, {granted} % {outcome}"));
            hints.share = self.share;
        }
        (hints, (!clamped.is_empty()).then(|| clamped.join(", ")))
    }

    /// The limit and how to exceed it, for messages.
    pub(super) fn description(self, peer: Peer) -> String {
        let advice = if peer.is_unconfined() {
            format!(
                "run as root, join the group `{GROUP}`, or have [limits] in the service's configuration raised"
            )
        } else {
            "have an administrator give its control group a grant with `xsched grant`".to_owned()
        };
        format!(
            "user {} may request at most priority {} and share {} %; to exceed that, {advice}",
            peer.uid,
            self.priority,
            self.share.percent()
        )
    }
}

/// The highest hints that the users of a service may request.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// The limit of users without an entry.
    pub default: Limit,
    /// Limits of users, by user id. They take precedence over groups.
    pub users: Vec<(u32, Limit)>,
    /// Limits of groups, by group id. The highest limit of a user's groups applies.
    pub groups: Vec<(u32, Limit)>,
}

impl Limits {
    fn of(&self, uid: u32, groups: &[u32]) -> Limit {
        if let Some((_, limit)) = self.users.iter().find(|(user, _)| *user == uid) {
            return *limit;
        }
        let matching =
            self.groups.iter().filter(|(group, _)| groups.contains(group)).map(|(_, limit)| *limit);
        matching
            .reduce(|a, b| Limit { priority: a.priority.max(b.priority), share: a.share.max(b.share) })
            .unwrap_or(self.default)
    }

    /// The limit of a user whose groups are not known: the lowest that they may imply.
    fn lowest_of(&self, uid: u32) -> Limit {
        if let Some((_, limit)) = self.users.iter().find(|(user, _)| *user == uid) {
            return *limit;
        }
        self.groups.iter().map(|(_, limit)| *limit).fold(self.default, |a, b| Limit {
            priority: a.priority.min(b.priority),
            share: a.share.min(b.share),
        })
    }
}

impl Service {
    /// Whether this peer may do everything.
    pub(super) fn is_administrator(&self, peer: Peer) -> bool {
        // The HTTP interface does not know the process of a caller, which may be in a container.
        let is_known = peer.has_process() || !self.confines_groups();
        peer.is_unconfined()
            && is_known
            && (peer.uid == 0
                || peer.uid == self.uid
                || self.group.is_some_and(|group| peer.is_in_group(group)))
    }

    /// The highest hints that this peer may request.
    pub(super) fn limit(&self, peer: Peer) -> Limit {
        if self.is_administrator(peer) {
            return Limit::NONE;
        }
        if !peer.has_process() {
            return self.options.limits.lowest_of(peer.uid);
        }
        let mut groups = if self.options.limits.groups.is_empty() { Vec::new() } else { peer.groups() };
        groups.push(peer.gid);
        self.options.limits.of(peer.uid, &groups)
    }

    /// Fails unless this peer is an administrator. `operation` completes the sentence "user 7 may not ...".
    pub(super) fn require_administrator(&self, peer: Peer, operation: &str) -> Result<(), String> {
        if self.is_administrator(peer) {
            return Ok(());
        }
        let advice = if !peer.is_unconfined() {
            "its control group has a grant or is confined by the configuration; do it outside of the container or job".to_owned()
        } else if peer.has_process() {
            format!("run as root or join the group `{GROUP}`")
        } else {
            format!(
                "run as root, use `xsched` as a member of the group `{GROUP}`, or send the token of the service"
            )
        };
        Err(format!("{} may not {operation}: {advice}", peer.user()))
    }
}

/// The id of a group, from `/etc/group`.
pub(super) fn group_id(name: &str) -> Option<u32> {
    let list = std::fs::read_to_string("/etc/group").ok()?;
    list.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority(n: i64) -> Limit {
        Limit { priority: Priority::new(n).unwrap(), ..Limit::default() }
    }

    #[test]
    fn user_limit_precedes_group_limits_and_the_highest_group_limit_applies() {
        let limits = Limits {
            users: vec![(7, priority(-5))],
            groups: vec![(100, priority(10)), (200, priority(50))],
            ..Limits::default()
        };
        assert_eq!(limits.of(7, &[200]), priority(-5));
        assert_eq!(limits.of(8, &[100, 200]), priority(50));
        assert_eq!(limits.of(8, &[300]), Limit::default());
        assert_eq!((limits.lowest_of(7), limits.lowest_of(8)), (priority(-5), Limit::default()));
        let low_group = Limits { groups: vec![(100, priority(10)), (200, priority(-50))], ..limits };
        assert_eq!(low_group.lowest_of(8), priority(-50), "the caller may be a member of the group");
    }

    #[test]
    fn hints_above_the_limit_are_clamped_and_reported() {
        let hints = Hints { priority: Priority::HIGH, ..Hints::default() };
        let (granted, clamped) = Limit::default().clamp(hints, "was granted");
        assert_eq!(granted.priority, Priority::DEFAULT);
        assert_eq!(clamped.unwrap(), "priority 100 was requested, 0 was granted");
        let raised = Limit::default().or_current(hints);
        assert_eq!(
            raised.clamp(hints, "was granted"),
            (hints, None),
            "hints that an administrator has set may be kept"
        );
    }
}

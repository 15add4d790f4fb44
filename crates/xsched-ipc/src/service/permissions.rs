//! Who may do what. As with `nice`: anyone may lower themselves.
//!
//! The kernel says who is at the other end of a socket. Root, members of the group `xsched` and the user the service
//! itself runs as may do everything; so in a service of one's own everything is allowed. Everybody else may raise
//! their own programs up to their limit, and look.

use xsched_core::{Hints, Priority, Share};

use super::Service;
use super::peer::Peer;

/// Members of this group may do everything.
pub const GROUP: &str = "xsched";

/// What one user may wish for.
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
    /// No limit at all.
    pub const NONE: Self = Self { priority: Priority::MAX, share: Share::DEFAULT };

    /// As this limit, but what is had already may be kept.
    pub(super) fn or_what_is_had(self, had: Hints) -> Self {
        let laxity = had.laxity.map_or(Priority::NO_EXECUTE, |laxity| laxity.lax.max(laxity.critical));
        Self { priority: self.priority.max(had.priority).max(laxity), share: self.share.max(had.share) }
    }

    /// Lowers what is above the limit. Says what was lowered.
    pub(super) fn lower(self, mut hints: Hints) -> (Hints, Option<String>) {
        let mut lowered = Vec::new();
        let lower_priority = |name: &str, priority: &mut Priority, lowered: &mut Vec<String>| {
            if *priority > self.priority {
                lowered.push(format!("{name} {priority} was lowered to {}", self.priority));
                *priority = self.priority;
            }
        };
        lower_priority("priority", &mut hints.priority, &mut lowered);
        if let Some(laxity) = &mut hints.laxity {
            lower_priority("priority before the laxity's end", &mut laxity.lax, &mut lowered);
            lower_priority("priority after the laxity's end", &mut laxity.critical, &mut lowered);
        }
        if hints.share > self.share {
            let (from, to) = (hints.share.percent(), self.share.percent());
            lowered.push(format!("share {from} % was lowered to {to} %"));
            hints.share = self.share;
        }
        let note = (!lowered.is_empty()).then(|| format!("{}: {}", lowered.join(", "), WHO));
        (hints, note)
    }
}

/// Who may do what others may not, for refusals.
pub(super) const WHO: &str = "more needs root or a member of the group `xsched`";

/// What the users of a service may wish for.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Everybody who is not named.
    pub default: Limit,
    /// Users, by number. They come before groups.
    pub users: Vec<(u32, Limit)>,
    /// Groups, by number. Of several the most generous counts.
    pub groups: Vec<(u32, Limit)>,
}

impl Limits {
    fn of(&self, uid: u32, groups: &[u32]) -> Limit {
        if let Some((_, limit)) = self.users.iter().find(|(user, _)| *user == uid) {
            return *limit;
        }
        let fitting = self.groups.iter().filter(|(group, _)| groups.contains(group)).map(|(_, limit)| *limit);
        fitting
            .reduce(|a, b| Limit { priority: a.priority.max(b.priority), share: a.share.max(b.share) })
            .unwrap_or(self.default)
    }
}

impl Service {
    /// Whether everything is allowed to this peer.
    pub(super) fn is_master(&self, peer: Peer) -> bool {
        peer.uid == 0
            || peer.uid == self.uid
            || self.group.is_some_and(|group| peer.gid == group || peer.groups().contains(&group))
    }

    /// What this peer may wish for.
    pub(super) fn limit(&self, peer: Peer) -> Limit {
        if self.is_master(peer) {
            return Limit::NONE;
        }
        let mut groups = if self.options.limits.groups.is_empty() { Vec::new() } else { peer.groups() };
        groups.push(peer.gid);
        self.options.limits.of(peer.uid, &groups)
    }

    /// Refuses what only masters may do.
    pub(super) fn masters_only(&self, peer: Peer, what: &str) -> Result<(), String> {
        if self.is_master(peer) {
            return Ok(());
        }
        Err(format!("user {} may not {what}: that needs root or a member of the group `{GROUP}`", peer.uid))
    }
}

/// The number of a group, from the machine's own list.
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
    fn users_come_before_groups_and_the_most_generous_group_counts() {
        let limits = Limits {
            users: vec![(7, priority(-5))],
            groups: vec![(100, priority(10)), (200, priority(50))],
            ..Limits::default()
        };
        assert_eq!(limits.of(7, &[200]), priority(-5));
        assert_eq!(limits.of(8, &[100, 200]), priority(50));
        assert_eq!(limits.of(8, &[300]), Limit::default());
    }

    #[test]
    fn what_is_above_the_limit_is_lowered_and_said() {
        let hints = Hints { priority: Priority::HIGH, ..Hints::default() };
        let (lowered, note) = Limit::default().lower(hints);
        assert_eq!(lowered.priority, Priority::DEFAULT);
        assert!(note.unwrap().starts_with("priority 100 was lowered to 0: "));
        let had = Limit::default().or_what_is_had(hints);
        assert_eq!(had.lower(hints), (hints, None), "what a master gave may be kept");
    }
}

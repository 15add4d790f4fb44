//! Rules: hints and a limit of device memory for processes by their executable, control group or user.

use xsched_core::{Hints, Priority, Share};

use crate::memory::MemoryLimit;

/// A pattern: `*` matches any text, `?` any one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// Creates a pattern. Every text is valid.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }

    /// The text of the pattern.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pattern matches all of `text`.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text): (Vec<char>, Vec<char>) = (self.0.chars().collect(), text.chars().collect());
        let (mut p, mut t) = (0, 0);
        // Where to resume if the text after the last star does not match: the star takes one more character.
        let mut retry = None;
        while t < text.len() {
            match pattern.get(p) {
                Some('*') => {
                    retry = Some((p + 1, t));
                    p += 1;
                }
                Some(c) if *c == '?' || *c == text[t] => (p, t) = (p + 1, t + 1),
                _ => {
                    let Some((star, taken)) = retry else { return false };
                    retry = Some((star, taken + 1));
                    (p, t) = (star, taken + 1);
                }
            }
        }
        pattern[p..].iter().all(|c| *c == '*')
    }
}

/// Gives hints, and a limit of device memory, to the processes that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Matches the file name of the executable, or its path if the pattern contains a slash.
    pub executable: Option<Glob>,
    /// Matches the path of the control group.
    pub cgroup: Option<Glob>,
    /// Matches processes of this user.
    pub user: Option<u32>,
    /// The priority that it gives.
    pub priority: Option<Priority>,
    /// The share that it gives.
    pub share: Option<Share>,
    /// The most device memory that each process may allocate on a device.
    pub memory: Option<MemoryLimit>,
}

impl Rule {
    /// Whether it matches a process: every pattern it has must match.
    #[must_use]
    pub fn matches(&self, executable: &str, cgroup: &str, user: u32) -> bool {
        let file = executable.rsplit('/').next().unwrap_or(executable);
        let matches = |glob: &Glob| glob.matches(if glob.as_str().contains('/') { executable } else { file });
        self.executable.as_ref().is_none_or(matches)
            && self.cgroup.as_ref().is_none_or(|glob| glob.matches(cgroup))
            && self.user.is_none_or(|own| own == user)
    }

    /// Applies the rule to `hints`.
    #[must_use]
    pub fn applied_to(&self, mut hints: Hints) -> Hints {
        hints.priority = self.priority.unwrap_or(hints.priority);
        hints.share = self.share.unwrap_or(hints.share);
        hints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match() {
        for (pattern, text, is_match) in [
            ("python*", "python3.12", true),
            ("python?", "python", false),
            ("*train*", "my-train.sh", true),
            ("*a*b", "aaab", true),
            ("*a*b", "aaba", false),
            ("", "", true),
            ("*", "", true),
            ("/system.slice/*.service", "/system.slice/a/b.service", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), is_match, "{pattern} {text}");
        }
        // The time is not exponential in the number of stars.
        assert!(!Glob::new(&"*a".repeat(50)).matches(&("a".repeat(49) + &"b".repeat(2000))));
    }

    #[test]
    fn rule_matches_if_all_its_patterns_match() {
        let rule = Rule {
            executable: Some(Glob::new("python*")),
            cgroup: Some(Glob::new("/batch*")),
            user: Some(7),
            priority: Some(Priority::LOW),
            share: None,
            memory: None,
        };
        assert!(rule.matches("/usr/bin/python3", "/batch/1", 7));
        assert!(!rule.matches("/usr/bin/python3", "/user", 7));
        assert!(!rule.matches("/usr/bin/python3", "/batch/1", 8));
        assert_eq!(rule.applied_to(Hints::default()).priority, Priority::LOW);
        let whole = Rule { executable: Some(Glob::new("/usr/*/python3")), cgroup: None, ..rule };
        assert!(whole.matches("/usr/bin/python3", "", 7) && !whole.matches("/opt/python3", "", 7));
    }
}

//! What programs are given without asking, by their executable or control group.

use xsched_core::{Hints, Priority, Share};

/// A pattern: `*` stands for any text, `?` for any one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// Any text is a pattern.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether all of `text` fits.
    #[must_use]
    pub fn fits(&self, text: &str) -> bool {
        let (pattern, text): (Vec<char>, Vec<char>) = (self.0.chars().collect(), text.chars().collect());
        let (mut p, mut t) = (0, 0);
        // Where to go on if the text after the last star does not fit: let the star take one character more.
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

/// Gives hints to the programs it fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Fits the file name of the executable, or its whole path if the pattern has a slash.
    pub executable: Option<Glob>,
    /// Fits the control group's path.
    pub cgroup: Option<Glob>,
    /// What it gives.
    pub priority: Option<Priority>,
    /// What it gives.
    pub share: Option<Share>,
}

impl Rule {
    /// Whether it fits a program. Everything it names must fit.
    #[must_use]
    pub fn fits(&self, executable: &str, cgroup: &str) -> bool {
        let file = executable.rsplit('/').next().unwrap_or(executable);
        let fits = |glob: &Glob| glob.fits(if glob.as_str().contains('/') { executable } else { file });
        self.executable.as_ref().is_none_or(fits) && self.cgroup.as_ref().is_none_or(|glob| glob.fits(cgroup))
    }

    /// What becomes of `hints` under it.
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
    fn stars_and_question_marks() {
        for (pattern, text, fits) in [
            ("python*", "python3.12", true),
            ("python?", "python", false),
            ("*train*", "my-train.sh", true),
            ("*a*b", "aaab", true),
            ("*a*b", "aaba", false),
            ("", "", true),
            ("*", "", true),
            ("/system.slice/*.service", "/system.slice/a/b.service", true),
        ] {
            assert_eq!(Glob::new(pattern).fits(text), fits, "{pattern} {text}");
        }
        // Linear in practice: no pattern makes this explode.
        assert!(!Glob::new(&"*a".repeat(50)).fits(&("a".repeat(49) + &"b".repeat(2000))));
    }

    #[test]
    fn a_rule_fits_if_all_it_names_does() {
        let rule = Rule {
            executable: Some(Glob::new("python*")),
            cgroup: Some(Glob::new("/batch*")),
            priority: Some(Priority::LOW),
            share: None,
        };
        assert!(rule.fits("/usr/bin/python3", "/batch/1"));
        assert!(!rule.fits("/usr/bin/python3", "/user"));
        assert_eq!(rule.applied_to(Hints::default()).priority, Priority::LOW);
        let whole = Rule { executable: Some(Glob::new("/usr/*/python3")), cgroup: None, ..rule };
        assert!(whole.fits("/usr/bin/python3", "") && !whole.fits("/opt/python3", ""));
    }
}

//! Parses the file and finds all its errors.
//!
//! The parser stops at the first error. The line of an invalid value is therefore blanked, and the rest is parsed again.

use std::fmt;
use std::ops::Range;

use toml::Spanned;

use super::{Content, LimitEntry, RuleEntry};

/// How many errors are reported.
const MAX_ERRORS: usize = 20;

/// An error in the file: `LINE:COLUMN: field: reason`.
#[derive(Debug)]
pub(crate) struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses the text of a configuration file. Returns its errors by position.
pub(crate) fn parse(text: &str) -> Result<Content, Vec<ConfigError>> {
    let mut errors: Vec<(usize, ConfigError)> = Vec::new();
    let mut valid_lines = text.to_owned();
    let content: Option<Content> = loop {
        match toml::from_str(&valid_lines) {
            Ok(content) => break Some(content),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                errors.push((at, error_at(text, at, error.message())));
                if errors.len() == MAX_ERRORS || !blank_line(&mut valid_lines, at) {
                    break None;
                }
            }
        }
    };
    if let Some(content) = &content {
        let invalid: Vec<usize> = errors.iter().map(|(at, _)| *at).collect();
        let entries = incomplete_entries(content).into_iter();
        let reported = entries.filter(|(_, span)| !invalid.iter().any(|at| entry_contains(text, span, *at)));
        errors.extend(reported.map(|(reason, span)| (span.start, error_at(text, span.start, reason))));
    }
    match content {
        Some(content) if errors.is_empty() => Ok(content),
        _ => {
            errors.sort_by_key(|(at, _)| *at);
            Err(errors.into_iter().map(|(_, error)| error).collect())
        }
    }
}

/// Entries of lists without a key that they need: the reason, and where the entry is.
fn incomplete_entries(content: &Content) -> Vec<(&'static str, Range<usize>)> {
    let limits = content.limits.exceptions.iter().map(|entry| (lack_of_limit(entry.get_ref()), entry.span()));
    let rules = content.rules.iter().map(|entry: &Spanned<_>| (lack_of_rule(entry.get_ref()), entry.span()));
    limits.chain(rules).filter_map(|(reason, span)| Some((reason?, span))).collect()
}

fn lack_of_limit(limit: &LimitEntry) -> Option<&'static str> {
    if limit.user.is_some() == limit.group.is_some() {
        return Some("name either `user` or `group`");
    }
    (limit.max_priority.is_none() && limit.max_share.is_none())
        .then_some("give `max_priority`, `max_share`, or both")
}

fn lack_of_rule(rule: &RuleEntry) -> Option<&'static str> {
    if rule.executable.is_none() && rule.cgroup.is_none() && rule.user.is_none() {
        return Some("name an `executable`, a `cgroup` or a `user`");
    }
    let is_empty = rule.priority.is_none() && rule.share.is_none() && rule.memory.is_none();
    is_empty.then_some("give a `priority`, a `share` or `memory`")
}

/// Whether a position is between the header of an entry and the next header. The keys of such an entry are not complete.
fn entry_contains(text: &str, header: &Range<usize>, at: usize) -> bool {
    let end = text[header.start..].find("\n[").map_or(text.len(), |next| header.start + next);
    (header.start..end).contains(&at)
}

/// Replaces the line at a position by spaces, so that the positions of other errors stay. Returns false if that does not help: the
/// line has no value of its own.
fn blank_line(text: &mut String, at: usize) -> bool {
    let at = at.min(text.len());
    let begin = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let end = text[at..].find('\n').map_or(text.len(), |newline| at + newline);
    let line = &text[begin..end];
    if line.trim_start().starts_with('[') || !line.contains('=') {
        return false;
    }
    let blank = " ".repeat(line.len());
    text.replace_range(begin..end, &blank);
    true
}

fn error_at(text: &str, at: usize, reason: &str) -> ConfigError {
    let before = &text[..at.min(text.len())];
    let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before[begin..].chars().count() + 1;
    let full_line = text[begin..].lines().next().unwrap_or_default();
    let field = match full_line.split_once('=') {
        Some((key, _)) => format!("{}: ", key.trim()),
        None => String::new(),
    };
    ConfigError(format!("{line}:{column}: {field}{reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        parse(text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_errors_are_reported_by_position() {
        let text = "[defaults]\npolicy = \"best\"\nk = 2\n[limits]\nmax_prio = 5\nmax_share = 200\n[[rules]]\n\
                    executable = \"a\"\npriority = \"urgent\"\n[[rules]]\npriority = 5\n";
        let errors = errors(text);
        assert_eq!(errors.len(), 5, "{errors:#?}");
        for (error, begin) in errors.iter().zip([
            "2:10: policy: unknown policy",
            "5:1: max_prio: unknown field",
            "6:13: max_share: share 200",
            "9:12: priority: priority `urgent`",
            // The first rule has a priority, though an invalid one.
            "10:1: name an `executable`",
        ]) {
            assert!(error.starts_with(begin), "{error}");
        }
    }

    #[test]
    fn errors_of_grants_are_reported() {
        let errors = errors("[grants]\nconfine = [\"kubepods*\"]\ngroup = \"no such group\"\nlimit = 1\n");
        for (error, begin) in errors.iter().zip([
            "2:11: confine: \"kubepods*\" matches no control group",
            "3:9: group: group \"no such group\" does not exist",
            "4:1: limit: unknown field",
        ]) {
            assert!(error.starts_with(begin), "{error}");
        }
        assert_eq!(errors.len(), 3, "{errors:#?}");
    }

    #[test]
    fn syntax_errors_end_the_search() {
        assert_eq!(errors("[defaults\nk = 0").len(), 1);
        assert!(errors("").is_empty());
        assert_eq!(errors(&"[x]\n".repeat(3)).len(), 1);
        assert_eq!(errors("é = 1\n[limits]\nmax_share = \"é\"").len(), 2);
    }

    #[test]
    fn template_is_valid_as_it_is_and_with_its_examples() {
        assert_eq!(errors(super::super::TEMPLATE), Vec::<String>::new());
        let settings: String = super::super::TEMPLATE
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(setting) if setting.starts_with('[') || setting.contains(" = ") => setting,
                _ => line,
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        assert_eq!(errors(&settings), Vec::<String>::new());
        let content = parse(&settings).unwrap();
        assert_eq!((content.limits.exceptions.len(), content.rules.len()), (2, 1));
        let options = super::super::Config { file: None, content }.options("/nowhere".into());
        assert_eq!(options.rules.len(), 1);
        assert_eq!((options.grants.confine.len(), options.grants.group), (2, Some(200)));
    }
}

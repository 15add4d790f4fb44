//! The names of users.

/// The name of a user, or the number if it has none.
pub(crate) fn name_of(uid: u32) -> String {
    name_in(&std::fs::read_to_string("/etc/passwd").unwrap_or_default(), uid)
        .unwrap_or_else(|| uid.to_string())
}

fn name_in(list: &str, uid: u32) -> Option<String> {
    let uid = uid.to_string();
    list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(&uid)).then(|| name.to_owned())
    })
}

/// The ID of a user, by name or number.
pub(crate) fn parse_user(text: &str) -> Result<u32, String> {
    let by_name = || crate::config::id_of("/etc/passwd", text);
    text.parse().ok().or_else(by_name).ok_or_else(|| format!("user `{text}` does not exist on this machine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_number_and_name() {
        let list = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n";
        assert_eq!(name_in(list, 1000).as_deref(), Some("alice"));
        assert_eq!(name_in(list, 10), None);
        assert_eq!(parse_user("12"), Ok(12));
        assert_eq!(parse_user("root"), Ok(0));
        assert!(parse_user("no such user").is_err());
    }
}

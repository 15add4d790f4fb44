//! What users and files say is parsed by a process of root: no text makes it panic, and no text gives more than the limits.

use proptest::prelude::*;

use crate::arguments::Config;
use crate::rules::{Place, Request, parse_priority, parse_share};
use crate::sizes::{display_size, parse_size};
use crate::{cgroup, preload, submission};

proptest! {
    #[test]
    fn no_text_makes_a_parser_panic(text in ".{0,200}", job in any::<u32>()) {
        let _ = Config::parse(text.split(' '));
        let _ = Config::parse([format!("partition:{text}").as_str(), &format!("max_memory={text}")]);
        let _ = cgroup::of_step(&text, job);
        let _ = cgroup::node_of_job(&text, job);
        let arguments: Vec<_> = text.split(' ').map(str::to_owned).collect();
        let _ = submission::place(&arguments, |_| Some(text.clone()));
        let _ = preload::with_library(std::path::Path::new("/lib/libxsched.so"), &text);
        if let Ok(size) = parse_size(&text) {
            prop_assert_eq!(parse_size(&display_size(size)), Ok(size));
        }
    }

    #[test]
    fn no_request_gives_more_than_the_limits(
        priority in "-?[0-9]{1,4}|low|normal|high",
        share in "[0-9]{1,4}%?",
        memory in "[0-9]{1,20}[KMGT]",
        shards in any::<u64>(),
        partition in proptest::option::of("debug|gold|other"),
    ) {
        let config = Config::parse(
            "max_priority=90 max_share=80 max_memory=9G partition:debug=max_priority:50,max_share:40 shard_share=25 \
             shard_memory=1G".split(' '),
        )
        .unwrap();
        let request = Request {
            priority: parse_priority(&priority).ok(),
            share: parse_share(&share).ok(),
            memory: parse_size(&memory).ok(),
        };
        let place = Place { partition: partition.clone(), qos: None };
        let (share_of_shards, memory_of_shards) = config.shards(shards);
        let (rights, _) =
            config.rules.apply(&place, &request, |rule| rule.within_shards(share_of_shards, memory_of_shards));
        let is_strict = partition.is_none_or(|name| name == "debug");
        let (max_priority, max_share) = if is_strict { (50, 40) } else { (90, 80) };
        prop_assert!(rights.priority <= max_priority && rights.share.unwrap() <= max_share);
        prop_assert!(rights.memory.unwrap() <= (9 << 30));
        prop_assert!(rights.priority <= request.priority.unwrap_or(0).max(0));
    }
}

use super::*;

const DEVICE: DeviceId = DeviceId(7);
const OTHER: DeviceId = DeviceId(8);

fn limited(limit: u64) -> MemoryAccount {
    let account = MemoryAccount::new();
    account.set_limit(Some(MemoryLimit::Bytes(limit)));
    account
}

/// A group as the service makes it: the terms for a member.
fn terms(
    source: MemorySource,
    limit: Option<u64>,
    member: u64,
    fd: &OwnedFd,
) -> (MemoryTerms, Option<OwnedFd>) {
    let limit = limit.map(MemoryLimit::Bytes);
    (MemoryTerms { source, limit, member }, Some(fd.try_clone().unwrap()))
}

#[test]
fn limit_holds_on_each_device_and_a_release_makes_room() {
    let account = limited(10);
    assert_eq!(account.reserve(DEVICE, 100, 7), Ok(()));
    assert_eq!(account.reserve(DEVICE, 100, 4), Err(OverLimit { limit: 10, used: 7 }));
    assert_eq!(account.reserve(OTHER, 100, 10), Ok(()));
    account.release(DEVICE, 1);
    assert_eq!(account.reserve(DEVICE, 100, 4), Ok(()));
    assert_eq!((account.limit(100), account.used_together(DEVICE)), (Some(10), 10));
    account.add(DEVICE, 5);
    assert_eq!(account.used_together(DEVICE), 10, "nothing is left");
    account.set_limit(None);
    assert_eq!((account.limit(100), account.used_together(DEVICE)), (None, 15));
}

#[test]
fn percentage_is_of_each_device() {
    let account = MemoryAccount::new();
    account.set_limit(Some(MemoryLimit::Percent(50)));
    assert!(account.reserve(DEVICE, 100, 51).is_err() && account.reserve(DEVICE, 100, 50).is_ok());
    assert!(account.reserve(OTHER, 10, 6).is_err() && account.reserve(OTHER, 10, 5).is_ok());
}

#[test]
fn members_of_a_run_share_the_limit_of_their_environment() {
    let (_service, fd) = MemoryGroup::create().unwrap();
    let page = Page::create().unwrap();
    let (parent, child) = (limited(10), limited(10));
    assert_eq!(parent.reserve(DEVICE, 100, 6), Ok(()), "before it joins");
    parent.join(&page, &[terms(MemorySource::Run, None, 1, &fd)]);
    child.join(&page, &[terms(MemorySource::Run, None, 2, &fd)]);
    assert_eq!(child.used_together(DEVICE), 6);
    assert_eq!(child.reserve(DEVICE, 100, 5), Err(OverLimit { limit: 10, used: 6 }));
    assert_eq!(child.reserve(DEVICE, 100, 4), Ok(()));
    parent.release(DEVICE, 6);
    assert_eq!(child.reserve(DEVICE, 100, 6), Ok(()));
    // The service is gone: each process has the limit alone.
    parent.leave();
    child.leave();
    assert_eq!(parent.reserve(DEVICE, 100, 10), Ok(()));
    assert_eq!(child.reserve(DEVICE, 100, 1), Err(OverLimit { limit: 10, used: 10 }));
}

#[test]
fn all_limits_hold_and_a_refusal_by_one_reserves_nothing_in_another() {
    let ((_a, run), (_b, grant)) = (MemoryGroup::create().unwrap(), MemoryGroup::create().unwrap());
    let page = Page::create().unwrap();
    let (account, neighbor) = (limited(10), MemoryAccount::new());
    let of_grant = |member| terms(MemorySource::Grant, Some(20), member, &grant);
    account.join(&page, &[terms(MemorySource::Run, None, 1, &run), of_grant(1)]);
    neighbor.join(&page, &[of_grant(2)]);
    assert_eq!(neighbor.reserve(DEVICE, 100, 15), Ok(()));
    // 10 are free under the limit of the run, 5 under that of the grant.
    assert_eq!((account.limit(100), account.used_together(DEVICE)), (Some(10), 5));
    assert_eq!(account.reserve(DEVICE, 100, 6), Err(OverLimit { limit: 20, used: 15 }));
    neighbor.release(DEVICE, 5);
    assert_eq!(account.reserve(DEVICE, 100, 10), Ok(()), "the refused 6 count nowhere");
    account.change(&MemoryTerms { source: MemorySource::Grant, limit: None, member: 0 }, None);
    assert_eq!(neighbor.reserve(DEVICE, 100, 10), Ok(()), "the account has left the group");
}

#[test]
fn limit_of_a_rule_is_the_smaller_of_two() {
    let (account, page) = (limited(10), Page::create().unwrap());
    let rule = MemoryTerms { source: MemorySource::Rule, limit: Some(MemoryLimit::Bytes(4)), member: 0 };
    account.join(&page, &[(rule, None)]);
    assert_eq!(account.limit(100), Some(4));
    assert_eq!(account.reserve(DEVICE, 100, 5), Err(OverLimit { limit: 4, used: 0 }));
    assert_eq!(account.reserve(DEVICE, 100, 3), Ok(()));
    account.release(DEVICE, 1);
    let published = DeviceMemory { used: 2, peak: 3, limit: Some(4) };
    assert_eq!(page.memory(DEVICE), Some(published));
}

#[test]
fn amounts_are_entered_with_the_next_service() {
    let account = limited(10);
    assert_eq!(account.reserve(DEVICE, 100, 4), Ok(()));
    for service in 1..3 {
        let (group, fd) = MemoryGroup::create().unwrap();
        let page = Page::create().unwrap();
        account.join(&page, &[terms(MemorySource::Run, None, service, &fd)]);
        assert_eq!((group.used_on(DEVICE), page.memory(DEVICE).unwrap().used), (4, 4));
        account.leave();
    }
}

#[test]
fn freed_slot_is_claimed_again() {
    let (service, fd) = MemoryGroup::create().unwrap();
    let (account, page) = (limited(10), Page::create().unwrap());
    account.join(&page, &[terms(MemorySource::Run, None, 1, &fd)]);
    assert_eq!(account.reserve(DEVICE, 100, 4), Ok(()));
    service.remove_member(1);
    assert_eq!(account.reserve(DEVICE, 100, 5), Ok(()));
    assert_eq!(service.used_on(DEVICE), 9);
}

#[test]
fn child_after_fork_has_the_limit_and_nothing_else_and_needs_no_lock() {
    let account = limited(10);
    assert_eq!(account.reserve(DEVICE, 100, 4), Ok(()));
    let held = account.state();
    account.detach_in_child();
    assert_eq!((account.limit(100), account.used_together(DEVICE)), (Some(10), 0));
    drop(held);
}

#[test]
fn limits_are_decoded_as_encoded() {
    for limit in [None, Some(MemoryLimit::Bytes(20 << 30)), Some(MemoryLimit::Percent(100))] {
        assert_eq!(decode(encode(limit)), limit);
    }
}

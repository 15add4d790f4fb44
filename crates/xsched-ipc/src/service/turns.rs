//! A queue in which users take turns, however much each of them has in it.

use std::collections::VecDeque;

/// What waits, by user. The first user is next.
#[derive(Debug)]
pub(super) struct Turns<T>(VecDeque<(u32, VecDeque<T>)>);

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Turns<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, uid: u32, item: T) {
        match self.0.iter_mut().find(|(user, _)| *user == uid) {
            Some((_, items)) => items.push_back(item),
            None => self.0.push_back((uid, VecDeque::from([item]))),
        }
    }

    /// Takes the item whose turn it is.
    pub(super) fn next(&mut self) -> Option<(u32, T)> {
        let (uid, mut items) = self.0.pop_front()?;
        let item = items.pop_front()?;
        if !items.is_empty() {
            self.0.push_back((uid, items));
        }
        Some((uid, item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_however_much_they_have() {
        let mut turns = Turns::default();
        for item in 0..100 {
            turns.push(7, item);
        }
        turns.push(8, 200);
        turns.push(8, 201);
        let order: Vec<_> = (0..5).filter_map(|_| turns.next()).collect();
        assert_eq!(order, [(7, 0), (8, 200), (7, 1), (8, 201), (7, 2)]);
    }
}

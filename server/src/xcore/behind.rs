//! Who has read more than it has dealt with: whoever asks whether all that has come is under way waits for those.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Edge view: its connections that are behind with what they have read.
#[derive(Debug, Default)]
pub struct Behind {
    /// How often somebody has asked.
    asked: Cell<u64>,
    /// How many are behind since before the question of this number.
    since: RefCell<BTreeMap<u64, usize>>,
}

/// One of them, for as long as this lives.
#[derive(Debug)]
pub struct Late {
    behind: Rc<Behind>,
    since: u64,
}

impl Behind {
    /// Somebody is behind from now on.
    #[must_use]
    pub fn late(self: &Rc<Self>) -> Late {
        let since = self.asked.get();
        *self.since.borrow_mut().entry(since).or_default() += 1;
        Late { behind: Rc::clone(self), since }
    }

    /// A question: about those who are behind now, not about who will be later.
    #[must_use]
    pub fn ask(&self) -> u64 {
        let question = self.asked.get();
        self.asked.set(question + 1);
        question
    }

    /// Whether any of those is still behind.
    #[must_use]
    pub fn is_any(&self, question: u64) -> bool {
        self.since.borrow().first_key_value().is_some_and(|(since, _)| *since <= question)
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        let mut since = self.behind.since.borrow_mut();
        let Some(count) = since.get_mut(&self.since) else { return };
        *count -= 1;
        if *count == 0 {
            since.remove(&self.since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_about_those_who_were_behind_when_it_was_asked() {
        let behind = Rc::new(Behind::default());
        let first = behind.ask();
        assert!(!behind.is_any(first));
        let (one, two) = (behind.late(), behind.late());
        assert!(!behind.is_any(first), "they came later");
        let second = behind.ask();
        let three = behind.late();
        drop(one);
        assert!(behind.is_any(second));
        drop(two);
        assert!(!behind.is_any(second) && behind.is_any(behind.ask()));
        drop(three);
        assert!(!behind.is_any(behind.ask()) && behind.since.borrow().is_empty());
    }
}

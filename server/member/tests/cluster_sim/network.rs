//! The network between members: one connection each way, which keeps its order, may be slow, and
//! may break; then what was on its way is lost from some point on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use revd_engine::random::Random;
use revd_member::peer::PeerMessage;

/// From and to.
pub(crate) type Link = (u64, u64);

#[derive(Default)]
pub(crate) struct Network {
    members: BTreeSet<u64>,
    /// Connections by their ends; none while there is none.
    links: BTreeMap<Link, Option<VecDeque<PeerMessage>>>,
    /// Links on which nothing gets through, and for how many more steps.
    cut: BTreeMap<Link, u64>,
}

impl Network {
    pub(crate) fn new(members: u64) -> Self {
        let mut network = Self::default();
        (1..=members).for_each(|member| network.join(member, 1..member));
        network
    }

    /// Links between a new member and those that there are.
    pub(crate) fn join(&mut self, member: u64, others: impl Iterator<Item = u64>) {
        self.members.insert(member);
        let links = others.flat_map(|other| [(member, other), (other, member)]);
        self.links.extend(links.map(|link| (link, None)));
    }

    /// The member is gone, and its links.
    pub(crate) fn leave(&mut self, member: u64) {
        self.members.remove(&member);
        self.links.retain(|(from, to), _| ![*from, *to].contains(&member));
    }

    pub(crate) fn has(&self, member: u64) -> bool {
        self.members.contains(&member)
    }

    pub(crate) fn members(&self) -> Vec<u64> {
        self.members.iter().copied().collect()
    }

    pub(crate) fn links(&self) -> Vec<Link> {
        self.links.keys().copied().collect()
    }

    /// False if there is no connection: the message is lost.
    pub(crate) fn send(&mut self, link: Link, message: PeerMessage) -> bool {
        match self.links.get_mut(&link) {
            Some(Some(queue)) => {
                queue.push_back(message);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_cut(&self, link: Link) -> bool {
        self.cut.contains_key(&link)
    }

    pub(crate) fn is_connected(&self, link: Link) -> bool {
        matches!(self.links.get(&link), Some(Some(_)))
    }

    /// Both ends are there again.
    pub(crate) fn connect(&mut self, link: Link) {
        self.links.insert(link, Some(VecDeque::new()));
    }

    pub(crate) fn deliver(&mut self, link: Link) -> Option<PeerMessage> {
        if self.is_cut(link) {
            return None;
        }
        self.links.get_mut(&link)?.as_mut()?.pop_front()
    }

    /// The connection is gone. Messages up to some point still arrive: they are returned.
    pub(crate) fn disconnect(&mut self, link: Link, random: &mut Random) -> Vec<PeerMessage> {
        let Some(Some(mut queue)) = self.links.insert(link, None) else { return Vec::new() };
        let kept = if self.is_cut(link) { 0 } else { random.below(queue.len() as u64 + 1) };
        queue.truncate(usize::try_from(kept).unwrap());
        queue.into()
    }

    /// Nothing gets through for so many steps.
    pub(crate) fn cut(&mut self, link: Link, steps: u64) {
        self.cut.insert(link, steps);
    }

    /// Links that are whole again.
    pub(crate) fn pass_time(&mut self) {
        self.cut.retain(|_, steps| {
            *steps -= 1;
            *steps > 0
        });
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }
}

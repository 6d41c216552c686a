//! Reads of every kind.

use revd_checker::Request;
use revd_engine::random::Random;
use revd_proto::etcdserverpb::RangeRequest;
use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};

use super::next::Next;
use super::shared::Shared;

/// It remembers nothing.
#[derive(Debug, Default)]
pub(super) struct Reader {}

impl Reader {
    pub(super) fn next(&mut self, shared: &mut Shared, random: &mut Random) -> Next {
        let key = shared.key(random);
        let serializable = random.one_in(3);
        let mut range = RangeRequest { key, serializable, ..RangeRequest::default() };
        match random.below(10) {
            0..4 => {}
            4 => {
                let newest = shared.newest + i64::from(random.one_in(20));
                let behind = i64::try_from(random.below(60)).expect("a small number");
                range.revision = (newest - behind).max(1);
                range.range_end = shared.key(random);
            }
            5 => range.count_only = true,
            6 => {
                range.keys_only = true;
                range.range_end = "\0".into();
                range.key = "\0".into();
                range.limit = 20;
            }
            7 => {
                range.range_end = shared.key(random);
                range.sort_order = random.pick(&[SortOrder::Ascend, SortOrder::Descend]) as i32;
                range.sort_target = random.pick(&[SortTarget::Key, SortTarget::Mod]) as i32;
            }
            _ => {
                (range.key, range.range_end) = ("key/".into(), "key0".into());
                range.limit = i64::try_from(random.below(6)).expect("a small number");
            }
        }
        Request::Range(range).into()
    }
}

//! Where entries are in the segments, so that those that are not in memory can be read again.
//!
//! A place is a row of frames in one segment, one behind the other, that hold entries in a row. A
//! frame whose entries replace earlier ones begins a place of its own and cuts off the places
//! before it, so that an index is in one place only. Entries are read from a
//! place only if all its frames are whole and are those that were written: a segment may be used
//! again meanwhile.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::limits;
use crate::wal::frame::{self, FrameId};
use crate::wal::{FrameContent, LogEntry};

/// Frames that hold some entries, and possibly others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The first entry.
    pub first: u64,
    /// The last entry.
    pub last: u64,
    /// The first frame.
    pub frame: FrameId,
    /// Where it begins.
    pub offset: u64,
    /// Bytes of all frames.
    pub bytes: u64,
}

impl Place {
    fn is_followed_by(&self, frame: FrameId, offset: u64) -> bool {
        self.frame.segment == frame.segment && self.offset + self.bytes == offset
    }

    /// The entries, from the bytes that are in the segment; none if these are not the frames.
    #[must_use]
    pub fn decode(&self, bytes: &Bytes) -> Option<Vec<LogEntry>> {
        let wanted = usize::try_from(self.last.checked_add(1)?.checked_sub(self.first)?).ok()?;
        let (mut entries, mut id, mut offset) = (Vec::with_capacity(wanted), self.frame, 0);
        while offset < bytes.len() {
            let frame = frame::decode(&bytes.slice(offset..)).filter(|frame| frame.id == id)?;
            offset += frame.len;
            id.frame += 1;
            for entry in frame.content.entries.into_iter().filter(|entry| entry.index >= self.first) {
                let keep = usize::try_from(entry.index - self.first).ok()?;
                if keep > entries.len() {
                    return None;
                }
                entries.truncate(keep);
                entries.push(entry);
            }
        }
        entries.truncate(wanted);
        (entries.len() == wanted).then_some(entries)
    }
}

/// Log core view: the places of all entries in the segments, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places(VecDeque<Place>);

impl Places {
    /// A frame is written here.
    pub fn add(&mut self, frame: FrameId, offset: u64, bytes: u64, content: &FrameContent) {
        if content.restart.is_some() {
            self.0.clear();
        }
        let place = match (content.entries.first(), content.entries.last()) {
            (Some(first), Some(last)) => Place { first: first.index, last: last.index, frame, offset, bytes },
            _ => {
                // It holds no entries, but those before and behind it may stay together.
                if let Some(back) = self.0.back_mut().filter(|back| back.is_followed_by(frame, offset)) {
                    back.bytes += bytes;
                }
                return;
            }
        };
        while self.0.pop_back_if(|back| back.first >= place.first).is_some() {}
        if let Some(back) = self.0.back_mut() {
            let is_in_row =
                back.last.checked_add(1) == Some(place.first) && back.is_followed_by(frame, offset);
            if is_in_row && back.bytes + bytes <= limits::LOG_PLACE_BYTES {
                (back.last, back.bytes) = (place.last, back.bytes + bytes);
                return;
            }
            back.last = back.last.min(place.first - 1);
        }
        self.0.push_back(place);
    }

    /// Segments before this one are not there any more.
    pub fn release(&mut self, segment: u64) {
        while self.0.pop_front_if(|place| place.frame.segment < segment).is_some() {}
    }

    /// The places of entries from `low` on and below `high`, so many that there is one entry and no
    /// more than these bytes behind it; none if the entry is in no segment.
    #[must_use]
    pub fn plan(&self, low: u64, high: u64, bytes_max: u64) -> Vec<Place> {
        let at = self.0.partition_point(|place| place.first <= low).saturating_sub(1);
        let (mut plan, mut bytes): (Vec<Place>, u64) = (Vec::new(), 0);
        for place in self.0.range(at.min(self.0.len())..) {
            let next = plan.last().map_or(low, |place| place.last + 1);
            let is_there = place.first <= next && next <= place.last;
            if !is_there || next >= high || (bytes > 0 && bytes + place.bytes > bytes_max) {
                break;
            }
            bytes += place.bytes;
            let last = place.last.min(high - 1);
            match plan.last_mut().filter(|before| before.is_followed_by(place.frame, place.offset)) {
                Some(before) => (before.last, before.bytes) = (last, before.bytes + place.bytes),
                None => plan.push(Place { first: next, last, ..*place }),
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use revd_engine::random::Random;

    use super::*;
    use crate::cluster::Identity;
    use crate::wal::birth::empty_log;
    use crate::wal::layout::{Layout, LayoutConfig, LogStep};
    use crate::wal::{BLOCK, LogRestart};

    const SEGMENT_BYTES: u64 = 64 * BLOCK as u64;

    struct Files(BTreeMap<u64, Vec<u8>>);

    impl Files {
        fn append(&mut self, layout: &mut Layout, content: &FrameContent) {
            for step in layout.append(content) {
                match step {
                    LogStep::Create { segment, bytes } => {
                        self.0.insert(segment, vec![0; usize::try_from(bytes).unwrap()]);
                    }
                    LogStep::Write { segment, offset, bytes } => {
                        let at = usize::try_from(offset).unwrap();
                        self.0.get_mut(&segment).unwrap()[at..at + bytes.len()].copy_from_slice(&bytes);
                    }
                }
            }
        }

        fn read(&self, plan: &[Place]) -> Option<Vec<LogEntry>> {
            let mut entries = Vec::new();
            for place in plan {
                let at = usize::try_from(place.offset).unwrap();
                let file = self.0.get(&place.frame.segment)?;
                let bytes = file.get(at..at + usize::try_from(place.bytes).unwrap())?;
                entries.extend(place.decode(&Bytes::copy_from_slice(bytes))?);
            }
            Some(entries)
        }
    }

    fn layout() -> Layout {
        let config =
            LayoutConfig { segment_bytes: SEGMENT_BYTES, first_segment_bytes: SEGMENT_BYTES, secret: 5 };
        Layout::new(config, &empty_log(Identity { cluster: 1, member: 2 }))
    }

    fn entry(random: &mut Random, index: u64, term: u64) -> LogEntry {
        let data = vec![random.byte(); usize::try_from(random.below(9_000)).unwrap()];
        LogEntry { index, term, kind: 0, data: data.into() }
    }

    /// Frames of all kinds; whatever is read is what the log holds, never what was replaced.
    #[test]
    fn what_is_read_is_what_the_log_holds() {
        let mut random = Random::new(11);
        let (mut files, mut layout) = (Files(BTreeMap::new()), layout());
        let mut truth: BTreeMap<u64, LogEntry> = BTreeMap::new();
        let (mut base, mut last, mut term, mut read, mut replaced) = (1, 1, 1, 0, 0);
        for _ in 0..4_000 {
            let mut content = FrameContent::default();
            match random.below(40) {
                0 => {
                    last += random.below(9);
                    content.restart = Some(LogRestart { index: last, term });
                    truth.clear();
                    base = last;
                }
                1..4 => {
                    term += 1;
                    let fewer = random.below(1 + (last - base).min(6));
                    (last, replaced) = (last - fewer, replaced + fewer);
                }
                4 => {
                    base += random.below(last - base + 1);
                    truth = truth.split_off(&(base + 1));
                    for gone in layout.release(base, false) {
                        // Its file is another segment soon.
                        files.0.remove(&gone.segment);
                    }
                }
                _ => {}
            }
            let is_shorter = truth.last_key_value().map_or(base, |(index, _)| *index) > last;
            truth.split_off(&(last + 1));
            let entries = if random.one_in(8) && !is_shorter { 0 } else { 1 + random.below(5) };
            content.entries = (last + 1..=last + entries).map(|at| entry(&mut random, at, term)).collect();
            content.hard_state = (entries == 0).then(Default::default);
            last += entries;
            truth.extend(content.entries.iter().map(|entry| (entry.index, entry.clone())));
            files.append(&mut layout, &content);
            for _ in 0..3 {
                let low = base + 1 + random.below(last - base + 1);
                let high = low + random.below(60);
                let (bytes_max, wanted) = (random.below(200_000), truth.range(low..high.max(low)));
                let plan = layout.plan(low, high, bytes_max);
                let found = files.read(&plan).expect("nothing was used again");
                assert!(plan.iter().map(|place| place.bytes).sum::<u64>() <= bytes_max || plan.len() == 1);
                assert_eq!(found.is_empty(), wanted.clone().next().is_none(), "{low}..{high} of {last}");
                assert!(found.iter().eq(wanted.map(|(_, entry)| entry).take(found.len())));
                read += found.len();
            }
        }
        assert!(read > 10_000 && replaced > 100, "{read} read, {replaced} replaced");
    }

    #[test]
    fn a_segment_that_was_used_again_is_not_taken_for_the_one_before() {
        let mut random = Random::new(3);
        let (mut files, mut layout) = (Files(BTreeMap::new()), layout());
        for index in 2..200 {
            let entries = vec![entry(&mut random, index, 1)];
            files.append(&mut layout, &FrameContent { entries, ..FrameContent::default() });
        }
        let plan = layout.plan(2, 10, u64::MAX);
        assert_eq!(files.read(&plan).unwrap().len(), 8);
        let (first, other) = (plan[0].frame.segment, plan[0].frame.segment + 1);
        files.0.insert(first, files.0[&other].clone());
        assert_eq!(files.read(&plan), None, "of another segment");
        // One that was damaged.
        let plan = layout.plan(150, 160, u64::MAX);
        let at = usize::try_from(plan[0].offset).unwrap() + 700;
        files.0.get_mut(&plan[0].frame.segment).unwrap()[at] ^= 1;
        assert_eq!(files.read(&plan), None);
    }
}

//! One member's raft alone: when its entries and messages leave.

use super::*;

fn empty_log() -> RecoveredLog {
    RecoveredLog {
        hard_state: HardState { term: 1, vote: 0, commit: 1 },
        base: (1, 1),
        ..crate::wal::birth::empty_log(crate::cluster::Identity { cluster: 1, member: 7 })
    }
}

fn node(log: &RecoveredLog, applied: u64) -> Result<RaftNode, RaftError> {
    RaftNode::start(&RaftConfig::alone(7, applied), log, &slog::Logger::root(slog::Discard, slog::o!()))
}

fn committed(effects: &RaftEffects) -> Vec<(u64, &[u8])> {
    effects.committed.iter().map(|entry| (entry.index, &entry.data[..])).collect()
}

/// Writes what is to be written until there is nothing more; returns what was committed.
fn settle(node: &mut RaftNode, log: &mut RecoveredLog) -> Vec<u64> {
    let mut indexes = Vec::new();
    loop {
        let effects = node.effects();
        indexes.extend(effects.committed.iter().map(|entry| entry.index));
        let Some(frame) = effects.append else { return indexes };
        if let Some(state) = frame.hard_state {
            log.hard_state = state;
        }
        log.entries.extend(frame.entries);
        node.written();
    }
}

#[test]
fn nothing_is_committed_before_it_is_written() {
    let mut log = empty_log();
    let mut node = node(&log, 1).unwrap();
    node.campaign().unwrap();
    assert_eq!(settle(&mut node, &mut log), [2]);
    assert_eq!((node.status().is_leader, node.status().term), (true, 2));
    node.propose(Bytes::from_static(b"a")).unwrap();
    node.propose(Bytes::from_static(b"b")).unwrap();
    let effects = node.effects();
    assert!(effects.committed.is_empty());
    assert_eq!(effects.append.unwrap().entries.len(), 2);
    node.propose(Bytes::from_static(b"c")).unwrap();
    let meanwhile = node.effects();
    assert!(meanwhile.append.is_none() && meanwhile.committed.is_empty(), "one frame at a time");
    node.written();
    let effects = node.effects();
    assert_eq!(committed(&effects), [(3, &b"a"[..]), (4, b"b")]);
    assert_eq!(effects.append.unwrap().entries.len(), 1);
    node.written();
    assert_eq!(committed(&node.effects()), [(5, &b"c"[..])]);
}

#[test]
fn a_restart_hands_out_what_was_not_applied() {
    let mut log = empty_log();
    let mut first = node(&log, 1).unwrap();
    first.campaign().unwrap();
    settle(&mut first, &mut log);
    for data in [b"a", b"b", b"c"] {
        first.propose(Bytes::from_static(data)).unwrap();
        settle(&mut first, &mut log);
    }
    let mut again = node(&log, 3).unwrap();
    again.campaign().unwrap();
    assert_eq!(settle(&mut again, &mut log), [4, 5, 6]);
    assert_eq!((again.status().term, again.applied_index()), (3, 3), "nothing more is known to be");
}

#[test]
fn a_log_that_does_not_meet_the_state_is_refused() {
    let mut log = empty_log();
    assert!(matches!(node(&log, 0), Err(RaftError::MissingEntries { base: 1, applied: 0 })));
    assert!(matches!(node(&log, 9), Err(RaftError::ShortLog { last: 1, applied: 9 })));
    log.base = (9, 1);
    log.hard_state.commit = 9;
    assert!(node(&log, 9).is_ok());
}

#[test]
fn released_entries_are_gone_and_the_rest_stays() {
    let mut log = empty_log();
    let mut node = node(&log, 1).unwrap();
    node.campaign().unwrap();
    settle(&mut node, &mut log);
    for _ in 0..10 {
        node.propose(Bytes::from_static(b"x")).unwrap();
        settle(&mut node, &mut log);
    }
    node.release(8, false);
    node.propose(Bytes::from_static(b"y")).unwrap();
    assert_eq!(settle(&mut node, &mut log), [13]);
}

/// Entries that come while a frame is written go into frames of a bounded size.
#[test]
fn much_that_gathers_is_written_in_several_frames() {
    let mut log = empty_log();
    let mut node = node(&log, 1).unwrap();
    node.campaign().unwrap();
    settle(&mut node, &mut log);
    let large = Bytes::from(vec![0; limits::FRAME_BYTES_MAX / 2]);
    let mut frames = Vec::new();
    for _ in 0..6 {
        node.propose(large.clone()).unwrap();
        frames.extend(node.effects().append.map(|frame| frame.entries.len()));
    }
    assert_eq!(frames, [1]);
    let mut committed = Vec::new();
    while node.is_writing() {
        node.written();
        let effects = node.effects();
        committed.extend(effects.committed.iter().map(|entry| entry.index));
        frames.extend(effects.append.map(|frame| frame.entries.len()));
    }
    assert_eq!(frames, [1, 2, 2, 1]);
    assert_eq!(committed, [3, 4, 5, 6, 7, 8]);
}

/// Voter 7 and learner 9: 7 leads at once, before a word of its term is on disk. If it lost power
/// now it would begin the same term again, and the learner would hold an entry of it that is no
/// more.
#[test]
fn a_sole_voter_sends_nothing_of_its_term_before_the_term_is_durable() {
    let log = empty_log();
    let mut config = RaftConfig::alone(7, 1);
    config.conf_state.learners = vec![9];
    let mut node = RaftNode::start(&config, &log, &slog::Logger::root(slog::Discard, slog::o!())).unwrap();
    node.campaign().unwrap();
    node.propose(Bytes::from_static(b"a")).unwrap();
    let effects = node.effects();
    assert_eq!(effects.append.unwrap().hard_state.map(|state| state.term), Some(2));
    assert!(node.status().is_leader && effects.messages.is_empty(), "{:?}", effects.messages);
    // A disk that is full for days.
    for _ in 0..100 {
        node.tick();
        assert!(node.effects().messages.is_empty());
    }
    node.written();
    let kinds: Vec<_> = node.effects().messages.iter().map(|message| message.0.get_msg_type()).collect();
    assert_eq!(kinds, [MessageType::MsgAppend, MessageType::MsgHeartbeat], "once each");
    // From here on the others are told while it writes.
    node.propose(Bytes::from_static(b"b")).unwrap();
    let _ = node.effects();
    node.tick();
    let beats = node.effects().messages;
    assert!(node.is_writing() && beats.iter().any(|beat| beat.0.get_msg_type() == MessageType::MsgHeartbeat));
}

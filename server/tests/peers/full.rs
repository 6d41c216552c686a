//! A peer that takes nothing more, and messages that find no room.

use revd::observe::bounds::Bound;
use revd_member::apply::command::CommandId;
use revd_member::apply::local::LeaseRequest;
use revd_member::peer::PeerMessage;

use crate::{Order, Seen, TestMember, dialed_by, framed, free_address, hello, outcome, word};

use std::io::Write as _;

/// The log core asks at once what it hears to be lost: a question that is dropped for want of
/// room, and told to be lost, would be asked and dropped for ever, and the thread would do no more.
#[test]
fn a_question_about_a_lease_that_finds_no_room_is_not_told_to_be_lost() {
    let one = TestMember::start(1, free_address());
    let dialed = dialed_by(&one);
    let much = PeerMessage::LeaseAnswer { id: CommandId(1), outcome: outcome(1 << 20) };
    one.order(Order::Send(3, vec![much; 64]));
    let question = PeerMessage::LeaseAsk { id: CommandId(2), request: LeaseRequest::Keys { lease: 1 } };
    one.order(Order::Send(3, vec![question]));
    // These two are told: in between nothing was.
    one.order(Order::Send(3, vec![word(3)]));
    one.expect(&Seen::Lost(3));
    one.expect(&Seen::Connected(3));
    assert_eq!(one.counters.bounds.get(Bound::PeerOutbox), 2);
    let (mut from_three, _) = one.dial(&hello());
    from_three.write_all(&framed(&[word(4)])).unwrap();
    one.expect(&Seen::Messages(3, vec![word(4)]));
    drop(dialed);
}

/// A batch of commands that is dropped for want of room takes nothing else with it: those that are
/// on their way get through, and no loss is told.
#[test]
fn a_batch_of_commands_that_finds_no_room_is_the_only_one_to_be_refused() {
    let one = TestMember::start(1, free_address());
    let dialed = dialed_by(&one);
    let much = PeerMessage::LeaseAnswer { id: CommandId(1), outcome: outcome(1 << 20) };
    one.order(Order::Send(3, vec![much; 64]));
    let batch = bytes::Bytes::from_static(b"commands");
    one.order(Order::Send(3, vec![PeerMessage::Forward(batch.clone())]));
    one.expect(&Seen::Unsent(batch));
    assert_eq!(one.counters.bounds.get(Bound::PeerOutbox), 1);
    drop(dialed);
    one.expect(&Seen::Lost(3));
}

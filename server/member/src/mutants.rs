//! The planted mutants of a member: see [`mod@revd_engine::mutants`].

pub use revd_engine::mutants::ARE_PLANTED;

revd_engine::mutants! {
    /// A leader takes an entry for committed when its own log has it.
    CommitWithoutQuorum,
    /// A leader counts itself for entries that it has not written yet.
    LeaderCountsUnwritten,
    /// A follower acknowledges entries that it has not written yet.
    AppendAcknowledgedUnwritten,
    /// A vote leaves before it is written.
    VoteNotDurable,
    /// The vote is not written, only the term.
    VoteNotSaved,
    /// Acknowledgements of entries that a received state has replaced still leave.
    PromisesOfReplacedLog,
    /// Entries that replace others which wait to be written go into a frame of their own.
    ReplacedEntriesApart,
    /// A change of members takes effect before it is durable that it is committed.
    MemberChangeNotDurable,
    /// Committed entries of a turn are applied in the wrong order.
    EntriesAppliedBackwards,
    /// A committed entry is applied twice.
    EntryAppliedTwice,
    /// A command of an entry is carried out twice.
    CommandCarriedOutTwice,
    /// The frame that begins the log again behind a received state has no hard state.
    StateWithoutHardState,
    /// The votes that are saved are those of before the change that was just committed.
    ConfStateOfWrongIndex,
    /// The votes behind a change of members are not saved.
    ConfStateNotSaved,
    /// A member goes on with the members of before the state that it has received.
    MembersOfBeforeState,
    /// A member that has lost acknowledged entries votes before it has them again.
    LostEntriesVote,
    /// The log lets go of entries that are applied and not saved.
    LogReleasedByApplied,
    /// The log lets go of entries that a state will hold which is not in its place yet.
    LogReleasedBeforeInstall,
    /// A segment of the log is let go of with its last entry still needed.
    SegmentReleasedEarly,
    /// A segment of the former process is used again, although its last write may still land.
    FormerSegmentReused,
    /// A new segment's header has no hard state.
    SegmentHeaderWithoutHardState,
    /// The log behind a damaged frame is dropped as a torn end.
    DamageTakenForEnd,
    /// A segment that is missing in the middle of the log is passed over.
    SegmentGapPassedOver,
    /// The checksum of a frame of the log is not looked at.
    FrameChecksumIgnored,
    /// Entries of before a received state stay in the log that is read.
    EntriesBeforeStateKept,
    /// A received state takes the tree file's place whatever entry the log begins behind.
    ReceivedStateOfOtherEntry,
    /// A leader that has committed nothing in its term names its commit index to readers.
    ReadAtCommitOfOldTerm,
    /// A leader answers reads without having heard of a quorum.
    LeaderReadsWithoutQuorum,
    /// A late confirmation of an earlier round counts for the present one.
    LateConfirmationCounts,
    /// Voters confirm a leader of whichever term.
    ConfirmationTermIgnored,
    /// A leader answers the reads of members that are in another term.
    ReadTermIgnored,
    /// A member whose read comes during a round is answered with that round's index.
    ReadRoundTakesLatecomers,
    /// Reads that come during an attempt are served by its answer.
    ReadJoinsAttempt,
    /// Attempts to read all have the same name.
    ReadContextReused,
    /// A read is served before the entry of its index is applied.
    ReadBeforeApplied,
    /// Answers leave before the View that holds their writes is published.
    AnswerBeforeView,
    /// Callers are told of a loss before those that were answered have their answers.
    LossBeforeAnswers,
    /// Callers are not told that their commands may be lost with a leader.
    LossNotTold,
    /// A follower sends its commands to the leader twice.
    ForwardDoubled,
    /// A caller is answered twice.
    AnswerDoubled,
    /// A member answers entries that its former process proposed.
    AnswersOfFormerProcess,
    /// A member that lags behind is sent a state of before it was added.
    SentStateTooOld,
    /// A state is put into its place while a checkpoint is being written.
    InstallDuringCheckpoint,
    /// A checkpoint begins while an entry is applied in part.
    CheckpointWithinEntry,
    /// The state hashes behind entries are not kept for comparison.
    StateHashesSkipped,
    /// A learner that lags behind is promoted.
    LaggingLearnerPromoted,
    /// A change of members is proposed without a quorum behind it.
    ChangeWithoutQuorum,
    /// A change of members is proposed before the last one is applied.
    TwoChangesAtOnce,
    /// The id of a removed member is taken for a new one.
    IdReusedAfterRemoval,
    /// New URLs give a learner a vote.
    UpdatePromotes,
    /// A message for another member is taken.
    MessageForAnotherTaken,
    /// A transaction that fails keeps what it has changed by then.
    TxnHalfApplied,
    /// Puts in nested transactions pass the quota.
    NestedPutsPassQuota,
    /// A lease that has expired is renewed by a keepalive that comes before its revocation.
    ExpiredLeaseResurrected,
    /// A lease expires a second early.
    LeaseExpiresEarly,
    /// A new leader does not know one lease in four.
    LeaseLostAtFailover,
    /// A new leader gives each lease its whole TTL, whatever was checkpointed.
    LeaseCheckpointIgnored,
    /// A member that leads no more goes on answering keepalives.
    KeepaliveByFormerLeader,
    /// Leases are revoked by the word of a former leader.
    RevokeWithoutTerm,
    /// Leases expire without a look at keepalives that have come.
    LeaseExpiresUnheard,
    /// A key that is put without its lease is still deleted with it.
    LeaseKeyNotDetached,
    /// Watchers miss the first revision of each batch.
    WatchEventLost,
    /// Watchers are told of the last revision of a batch again with the next one.
    WatchEventDoubled,
    /// A batch ends with a revision that it has not read.
    WatchRevisionCut,
    /// A watcher joins a pass one revision before its own.
    WatcherJoinsEarly,
    /// A stream is told of progress that not all of its watchers have made.
    ProgressTooEarly,
    /// Nodes of the map of ranges do not know how far their subtrees reach.
    RangeMapEntryLost,
    /// Watchers that a compaction has overtaken are dropped without a word.
    UnsyncedWatcherDropped,
    /// A hub that a compaction has overtaken goes on with what is left.
    CompactionPassesHub,
}

//! Runs the scripts in `tests/scripts/raft`: events of a member's raft in, what its `Ready` is
//! turned into out. `UPDATE_GOLDENFILES=1 cargo test -p revd-member --test raft_scripts` writes
//! what it is now; read the difference.
//!
//! ```text
//! start [voters=N] [applied=INDEX] [seed=N]      from the durable frames; forgets others
//! campaign    tick [N]    propose DATA ...       events
//! written                                        the frame that was handed out is durable
//! release INDEX                                  the state up to there is durable elsewhere
//! status                                         raft status
//! ```
//!
//! After each event all effects are taken: the frame to write, and the entries to apply. A member
//! sends nothing yet.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod golden;

use std::error::Error;
use std::fmt::Write as _;

use bytes::Bytes;
use goldenscript::{Argument, Command as Line, Context, Runner};
use revd_member::cluster::Identity;
use revd_member::cluster::conf_state::ConfState;
use revd_member::raft::node::{RaftConfig, RaftEffects, RaftNode};
use revd_member::raft::status::RaftStatus;
use revd_member::wal::birth::{BIRTH, empty_log};
use revd_member::wal::reader::RecoveredLog;
use revd_member::wal::{FrameContent, HardState};

use golden::run_all;

const OWNER: Identity = Identity { cluster: 1, member: 1 };

fn shown_data(data: &Bytes) -> String {
    if data.is_empty() { "empty".to_owned() } else { data.escape_ascii().to_string() }
}

struct RaftRunner {
    node: Option<RaftNode>,
    durable: RecoveredLog,
    /// The frame that was handed out.
    writing: Option<FrameContent>,
}

impl RaftRunner {
    fn new() -> Self {
        Self { node: None, durable: empty_log(OWNER), writing: None }
    }

    fn start(&mut self, line: &Line) -> Result<(), Box<dyn Error>> {
        let mut args = line.consume_args();
        let mut number = |name| args.take_key(name).map_or(Ok(None), |text| text.parse().map(Some));
        let (voters, applied, seed): (Option<u64>, _, _) =
            (number("voters")?, number("applied")?, number("seed")?);
        let config = RaftConfig {
            conf_state: ConfState::of_voters((1..=voters.unwrap_or(1)).collect()),
            seed: seed.unwrap_or_default(),
            ..RaftConfig::alone(OWNER.member, applied.unwrap_or(BIRTH.index))
        };
        self.writing = None;
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        self.node = Some(RaftNode::start(&config, &self.durable, &logger)?);
        Ok(())
    }

    fn node(&mut self) -> Result<&mut RaftNode, Box<dyn Error>> {
        self.node.as_mut().ok_or_else(|| "not started".into())
    }

    /// The frame that was handed out is in the log, and replaces the entries there from its first
    /// one on.
    fn written(&mut self) -> Result<(), Box<dyn Error>> {
        let FrameContent { restart: _, hard_state, entries } =
            self.writing.take().ok_or("nothing is being written")?;
        if let Some(state) = hard_state {
            self.durable.hard_state = state;
        }
        if let Some(first) = entries.first() {
            self.durable.entries.retain(|entry| entry.index < first.index);
        }
        self.durable.entries.extend(entries);
        self.node()?.written();
        Ok(())
    }

    /// Effects in words, until there are no more.
    fn effects(&mut self) -> String {
        let mut said = String::new();
        let Some(node) = self.node.as_mut() else { return said };
        let RaftEffects { append, committed, .. } = node.effects();
        if let Some(frame) = append {
            let state = frame.hard_state.map(|HardState { term, vote, commit }| {
                format!("term {term}, vote for {vote}, commit {commit}")
            });
            let entries = frame.entries.iter().map(|entry| {
                format!("entry {} of term {} ({})", entry.index, entry.term, shown_data(&entry.data))
            });
            let parts: Vec<String> = state.into_iter().chain(entries).collect();
            writeln!(said, "write {}", parts.join("; ")).unwrap();
            self.writing = Some(frame);
        }
        for entry in committed {
            writeln!(
                said,
                "apply entry {} of term {} ({})",
                entry.index,
                entry.term,
                shown_data(&entry.data)
            )
            .unwrap();
        }
        said
    }
}

impl Runner for RaftRunner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        let words: Vec<&str> = line
            .args
            .iter()
            .filter_map(
                |argument| if let Argument::Positional(word) = argument { Some(word.as_str()) } else { None },
            )
            .collect();
        match line.name.as_str() {
            "start" => self.start(line)?,
            "campaign" => self.node()?.campaign()?,
            "tick" => {
                for _ in 0..words.first().map_or(Ok(1), |count| count.parse())? {
                    self.node()?.tick();
                }
            }
            "propose" => {
                for data in words {
                    self.node()?.propose(Bytes::copy_from_slice(data.as_bytes()))?;
                }
            }
            "written" => self.written()?,
            "release" => {
                self.node()?.release(words[0].parse()?, false);
            }
            "status" => {
                let RaftStatus { term, leader, last_index, committed, is_leader, .. } = self.node()?.status();
                let leads = if is_leader { ", leads" } else { "" };
                return Ok(format!(
                    "term {term}, leader {leader}, entries to {last_index}, committed to {committed}{leads}"
                ));
            }
            name => return Err(format!("no event is called {name}").into()),
        }
        Ok(self.effects())
    }
}

#[test]
fn raft() {
    run_all("raft", RaftRunner::new);
}

//! The start of a process: the shipped recovery over the member's directory.

use std::time::Duration;

use revd_member::boot::recovery::{Recovery, RecoveryConfig, recover};
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::joining::RemoteCluster;
use revd_member::cluster::version::ClusterVersion;
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::member_changes::ChangeRules;
use revd_member::cores::state::StateCore;
use revd_member::peer::Peer;
use revd_member::raft::node::LogRetention;
use revd_member::read::view_slot::ViewSlot;
use revd_member::wal::layout::LayoutConfig;
use revd_member::wal::writer::{WalSeed, WalWriter};

use crate::disk::{Directory, StartError};
use crate::member::common::{Clock, Common, End};
use crate::member::edge::EdgePart;
use crate::member::log::LogPart;
use crate::member::peers::{PULSE_INTERVAL, Peers};
use crate::member::process::Process;
use crate::member::state::StatePart;
use crate::member::states::States;
use crate::member::writer::Writer;
use crate::outside::{Outside, Timer};
use crate::time::{ELECTION_TICKS, MILLISECOND, Micros, election_time};
use crate::truth::ClusterAt;

/// Of all members, and of the cluster.
pub(crate) const VERSION: ClusterVersion = ClusterVersion { major: 3, minor: 7 };

/// The settings of a start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which start of the member it is, unique in the run.
    pub boot: u64,
    /// The member's number in the run.
    pub member: usize,
    /// The flags that name the members.
    pub initial: InitialCluster,
    /// Without data, begin a new cluster; else join one.
    pub begins_cluster: bool,
    /// The cluster, as another member answers for it.
    pub remote: Option<RemoteCluster>,
    /// A step of raft's clock.
    pub tick: Micros,
    /// Ask before an election whether it can be won.
    pub pre_vote: bool,
    /// Checkpoints of little are put off so often.
    pub put_offs_max: u32,
    /// How much of the log stays for members that lag behind.
    pub retention: LogRetention,
    /// Bytes of a segment of the log.
    pub segment_bytes: u64,
    /// Bytes that the store may have; 0: no limit.
    pub quota_bytes: i64,
    /// Work of a step of the watch hub.
    pub step_work: usize,
    /// The member's clock.
    pub clock: Clock,
}

/// Why a process did not come to life.
#[derive(Debug)]
pub enum NoStart {
    /// It found files that it does not start from, or was refused.
    Refused(StartError),
    /// It ended in its first turn.
    Ended(End),
    /// It would go on without what was durable before.
    Lost(String),
}

/// Starts from what is in the directory.
///
/// # Errors
/// [`NoStart`]
pub(crate) fn start(
    directory: &Directory,
    settings: Settings,
    out: &mut Outside,
) -> Result<Box<Process>, NoStart> {
    let Settings { boot, member, remote, clock, .. } = settings;
    let config = RecoveryConfig {
        begins_cluster: settings.begins_cluster,
        forces_new: false,
        initial: settings.initial,
        version: VERSION,
        pre_vote: settings.pre_vote,
        advances_election: true,
        boot,
        election_ticks: ELECTION_TICKS.try_into().expect("a few"),
        election_seed: out.random.number(),
        log_retention: settings.retention,
        quota_bytes: settings.quota_bytes,
        lease_extension: election_time(settings.tick) / MILLISECOND,
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    let mut ask_others = |_: &InitialCluster| remote.clone();
    let mut effects = directory.recovery(&mut ask_others);
    let recovery = recover(&config, &logger, &mut effects).map_err(NoStart::Refused)?;
    let Recovery { identity, origin, mut machine, node, log, membership, .. } = recovery;
    let applied = machine.store().applied().index;
    let truth = &mut out.truth;
    truth.log(identity.member).recovered(&log, applied).map_err(NoStart::Lost)?;
    truth.starts_behind(identity.member, applied);
    if applied > 0 {
        truth.begin(applied, || ClusterAt::of(&machine));
    }
    let views = ViewSlot::new(machine.store_mut().view(), 1);
    let tick = Duration::from_micros(settings.tick);
    let common = Common::new((member, boot), identity, views, (clock, settings.tick), directory.clone());
    common.status.applied.store(applied);
    common.status.is_corrupt.store(machine.is_corrupt());
    let (segment_bytes, secret) = (settings.segment_bytes, out.random.number());
    // Where it is as long as the others, a spare of the process before may become it.
    let first_segment_bytes = if secret.is_multiple_of(2) { segment_bytes } else { segment_bytes / 4 };
    let layout = LayoutConfig { segment_bytes, first_segment_bytes, secret };
    let writer = WalWriter::new(WalSeed { disk: directory.log(), layout, log });
    let peers = membership.members().map(|row| Peer { id: row.id, urls: row.peer_ur_ls.clone() });
    let peers: Vec<Peer> = peers.collect();
    let log_config = LogConfig { origin, edges: 1, tick };
    let core = LogCore::new(node, log_config).with_members(membership, ChangeRules::new(tick, true));
    let mut state = StateCore::new(machine, 1);
    state.put_off_checkpoints(settings.put_offs_max);
    let mut process = Box::new(Process {
        common,
        log: LogPart {
            core,
            writer: Writer::new(writer),
            peers: Peers::new(),
            states: States::default(),
            is_over: false,
        },
        state: StatePart { core: state, is_over: false },
        edge: EdgePart::new(member, settings.step_work),
        for_log: Vec::new(),
        for_edge: Vec::new(),
        began: out.now(),
        is_stopping: false,
    });
    process.log.peers.set_peers(peers, &mut process.common, out);
    process.log.start(&mut process.common, out).map_err(NoStart::Ended)?;
    process.edge.start(&mut process.common, out);
    process.common.timer(tick, Timer::Tick, out);
    process.common.timer(PULSE_INTERVAL, Timer::Pulse, out);
    Ok(process)
}

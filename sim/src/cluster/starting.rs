//! How a member starts: what it is told of the others, and what becomes of one that refuses.

use std::collections::BTreeMap;

use revd_member::boot::recovery::Refusal;
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::joining::RemoteCluster;

use crate::cluster::Cluster;
use crate::disk::{DiskFaults, StartError, Trouble};
use crate::marks::Mark;
use crate::member::{Clock, NoStart, Settings, VERSION, start};
use crate::network::{member_at, url};
use crate::time::SECOND;

impl Cluster {
    /// The cluster as another member answers for it.
    fn remote(&self, of: usize) -> Option<RemoteCluster> {
        self.running().into_iter().find_map(|member| {
            let process = self.slots[member].process.as_ref()?;
            let is_cut = self.out.network.has_cut(member, of) || self.out.network.has_cut(of, member);
            let members = process.rows().filter(|_| member != of && !is_cut)?;
            Some(RemoteCluster { id: process.identity().cluster, members, versions: vec![VERSION] })
        })
    }

    /// The flags of a member; of one that joins with the URLs that the others have for it by now.
    fn initial(&self, member: usize, remote: Option<&RemoteCluster>) -> InitialCluster {
        let name = |member: usize| format!("m{member}");
        let mut own = vec![url(member)];
        let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
        if self.slots[member].begins_cluster {
            let begin = (0..self.slots.len()).filter(|other| self.slots[*other].begins_cluster);
            members.extend(begin.map(|other| (name(other), vec![url(other)])));
        } else {
            let is_own = |urls: &[String]| urls.iter().any(|url| member_at(url) == Some(member));
            for (at, row) in remote.iter().flat_map(|remote| &remote.members).enumerate() {
                if is_own(&row.peer_ur_ls) {
                    own.clone_from(&row.peer_ur_ls);
                } else {
                    members.insert(format!("x{at}"), row.peer_ur_ls.clone());
                }
            }
        }
        members.insert(name(member), own.clone());
        InitialCluster {
            name: name(member),
            members,
            advertised: own,
            token: "sim".to_owned(),
            names_are_made_up: false,
        }
    }

    /// A member starts, if it is down.
    pub(crate) fn start(&mut self, member: usize) {
        self.slots[member].plans_start = false;
        let slot = &self.slots[member];
        if slot.process.is_some() || slot.is_gone {
            return;
        }
        let remote = self.remote(member);
        self.boots += 1;
        let slot = &self.slots[member];
        let settings = Settings {
            boot: self.boots,
            member,
            initial: self.initial(member, remote.as_ref()),
            begins_cluster: slot.begins_cluster,
            remote,
            tick: self.habits.tick,
            pre_vote: self.habits.pre_vote,
            put_offs_max: self.habits.put_offs_max,
            retention: slot.retention,
            segment_bytes: slot.segment_bytes,
            quota_bytes: 0,
            step_work: self.habits.step_work,
            clock: Clock::new(self.out.now(), slot.rate),
        };
        match start(&slot.directory, settings, &mut self.out) {
            Ok(process) => {
                if self.slots[member].id.replace(process.identity().member).is_some() {
                    self.out.marks.reach(Mark::Restarted);
                } else if !self.slots[member].begins_cluster {
                    self.out.marks.reach(Mark::Joined);
                }
                self.slots[member].process = Some(process);
            }
            Err(NoStart::Refused(refusal)) => self.refused(member, &refusal),
            Err(NoStart::Ended(end)) => self.ended(member, end),
            Err(NoStart::Lost(why)) => {
                assert!(self.slots[member].is_rotten, "a start has lost what was durable: {why}");
                // No other member can know: it does not go on.
                self.rot_found(member, Mark::RotLooksTorn);
            }
        }
    }

    fn refused(&mut self, member: usize, refusal: &StartError) {
        let (random, slot) = (&mut self.out.random, &mut self.slots[member]);
        slot.directory.crash(random, &DiskFaults { only_process: 1_000, ..DiskFaults::default() });
        match refusal {
            StartError::Refused(Refusal::Removed) => slot.is_gone = true,
            // No place was made for it yet.
            StartError::Refused(Refusal::Join(_)) | StartError::NoAnswer => {
                self.plan_start(member, 2 * SECOND);
            }
            StartError::Damaged(_) | StartError::Refused(_) if slot.is_rotten => {
                self.rot_found(member, Mark::RotFound)
            }
            // The disk fails or is full: an operator mends it.
            StartError::Damaged(_) | StartError::Refused(_) if slot.had_trouble => {
                slot.had_trouble = slot.trouble != Trouble::default();
                self.plan_start(member, 5 * SECOND);
            }
            refusal => panic!("member {member} cannot start: {refusal:?}"),
        }
    }
}

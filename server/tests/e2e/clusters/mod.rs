//! Three members beside three members of etcd 3.7.1, and three members that are killed, paused and
//! cut off from each other while clients write, read and watch on all of them.
//!
//! `REVD_CLUSTERS=etcd` runs these tests with a cluster of etcd in the place of revd's: they have
//! to pass with it too.

mod away;
mod bugs;
mod corruption;
mod disaster;
mod discovery;
mod etcdctl;
mod etcdctl_failover;
mod faults;
mod go_client;
mod health;
mod installing;
mod leaders;
mod learners;
mod minority;
mod registry;
mod replication;
mod storms;
mod strangers;
mod tables;
mod third_party;
mod versions;
mod wires;
mod workload;

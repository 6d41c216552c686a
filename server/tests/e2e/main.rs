//! The real binary, driven from outside; beside the real etcd where behaviour is compared.
//!
//! A test that needs etcd or its tools says so and counts as skipped where they cannot be built;
//! with CI=true it fails there.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]

mod alarms;
mod attacks;
mod auth;
mod bad_input;
mod behind_puts;
mod bounds;
mod changed_twice;
mod clusters;
mod differential;
mod draining;
mod etcd_client;
mod etcdctl;
mod etcdctl_watch;
mod few_files;
mod format;
mod full_disk;
mod go_client;
mod grammar;
mod hash_kv;
mod kill;
mod large_txns;
mod large_values;
mod leases;
mod listening;
mod lock_bugs;
mod memory;
mod metrics;
mod metrics_urls;
mod offline;
mod overdue;
mod probes;
mod quota;
mod raw_requests;
mod reads;
mod restart_bugs;
mod soak;
mod standard_services;
mod start_and_stop;
mod tls;
mod watch_bugs;
mod watch_differential;
mod watch_storm;

mod harness;

//! Every fuzz target on a stable toolchain: seeds, and mutations of them, as many as
//! `REVD_FUZZ_RUNS` says for each target. Under libFuzzer: `server/fuzz`.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

#[path = "fuzz/targets.rs"]
#[allow(unreachable_pub, reason = "shared with server/fuzz")]
mod targets;

use revd_engine::random::Random;
use targets::{TARGETS, Target};

/// Changes bytes in one of the ways that find things: flips, interesting values, parts
/// moved, dropped, doubled or joined.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = |random: &mut Random, len: usize| usize::try_from(random.below(len as u64 + 1)).unwrap();
    for _ in 0..=random.below(4) {
        let (from, to) = {
            let (one, two) = (at(random, bytes.len()), at(random, bytes.len()));
            (one.min(two), one.max(two))
        };
        match random.below(8) {
            0 | 1 if from < bytes.len() => bytes[from] ^= 1 << random.below(8),
            2 if from < bytes.len() => bytes[from] = random.pick(&[0, 1, 0x7f, 0x80, 0xfe, 0xff]),
            3 if from < bytes.len() => bytes[from] = random.byte(),
            4 if to - from < 64 => drop(bytes.drain(from..to)),
            5 if to - from < 64 => {
                let part = bytes[from..to].to_vec();
                bytes.splice(to..to, part);
            }
            6 => {
                let start = at(random, other.len());
                let end = (start + usize::try_from(random.below(32)).unwrap()).min(other.len());
                bytes.splice(from..from, other[start..end].iter().copied());
            }
            7 => bytes.truncate(to),
            _ => bytes.insert(from, random.byte()),
        }
    }
}

fn fuzz(target: &Target, runs: u64) {
    let mut random = Random::new(target.name.len() as u64);
    let mut corpus = (target.seeds)();
    assert!(!corpus.is_empty(), "{} has no seeds", target.name);
    corpus.iter().for_each(|seed| (target.run)(seed));
    for run in 0..runs {
        let pick = |random: &mut Random, corpus: &[Vec<u8>]| {
            usize::try_from(random.below(corpus.len() as u64)).unwrap()
        };
        let other = corpus[pick(&mut random, &corpus)].clone();
        let mut bytes = corpus[pick(&mut random, &corpus)].clone();
        mutate(&mut bytes, &other, &mut random);
        let result = std::panic::catch_unwind(|| (target.run)(&bytes));
        assert!(result.is_ok(), "target {} fails at run {run} with {bytes:?}", target.name);
        // Some mutations of mutations.
        if bytes.len() < 2_000 && corpus.len() < 300 {
            corpus.push(bytes);
        }
    }
}

/// With `REVD_FUZZ_SEEDS` the seeds are left in that folder, for libFuzzer to begin with.
#[test]
fn seeds_can_be_written() {
    let kept = std::env::var_os("REVD_FUZZ_SEEDS").map(std::path::PathBuf::from);
    let temporary = tempfile::tempdir().unwrap();
    let folder = kept.unwrap_or_else(|| temporary.path().to_owned());
    for target in TARGETS {
        let folder = folder.join(target.name);
        std::fs::create_dir_all(&folder).unwrap();
        for (number, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed).unwrap();
        }
        assert!(std::fs::read_dir(&folder).unwrap().count() > 0);
    }
}

#[test]
fn no_bytes_end_the_process() {
    let runs = std::env::var("REVD_FUZZ_RUNS").map_or(3_000, |text| text.parse().unwrap());
    std::thread::scope(|scope| {
        let targets: Vec<_> = TARGETS.iter().map(|target| scope.spawn(move || fuzz(target, runs))).collect();
        targets.into_iter().for_each(|target| target.join().unwrap());
    });
    println!("{} targets, {runs} runs each", TARGETS.len());
}

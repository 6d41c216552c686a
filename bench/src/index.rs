//! The cost of the key index: `cargo run --release -p revd-bench --bin index -- KEYS`.
//!
//! Puts so many keys of 64 B, each once, publishing the index behind every so many, then looks up
//! random ones and puts random ones again, as one process for each shape of keys. Printed for each:
//! memory of the process for each key (the server's allocator), CPU of a put that adds a key, of a
//! lookup and of a put that changes one (less what making the key takes), and of freeing the index
//! of a moment of which every key has changed since.
//!
//! | shape | keys, and the order in which they come |
//! |---|---|
//! | random | 64 random letters, in no order |
//! | pods | a long beginning in common, as Kubernetes makes them, in no order |
//! | ascending | a number behind a common beginning, in order |
//! | loaded | random ones, as a start loads them |
//!
//! Misses of the processor's caches, where it does not count them itself: the program with the
//! arguments `100000 SHAPE LOOKUPS` under `valgrind --tool=cachegrind --cache-sim=yes
//! --LL=262144,16,64` (a cache as small beside these keys as one of 32 MB is beside ten million),
//! with LOOKUPS 1 and 2; the difference of `LLd misses`, by keys.

use std::hint::black_box;
use std::process::Command;
use std::time::Duration;

use revd_bench::cpu_time;
use revd_engine::key_parts::KeyParts;
use revd_engine::mvcc::Revision;
use revd_engine::mvcc::key_history::KeyHistory;
use revd_engine::mvcc::key_index::{KeyIndex, SharedIndex};
use revd_engine::random::Random;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEY_BYTES: usize = 64;
const SHAPES: [&str; 4] = ["random", "pods", "ascending", "loaded"];
/// Puts between two Views: a batch of the log.
const PUTS_PER_VIEW: u64 = 50;

fn main() -> anyhow::Result<()> {
    rustix::thread::disable_transparent_huge_pages(true)?; // as the server does
    let mut args = std::env::args().skip(1);
    let keys = args.next().map_or(Ok(1_000_000), |text| text.parse::<usize>())?;
    if let Some(shape) = args.next() {
        return measure(keys, &shape, args.next().map_or(Ok(1), |text| text.parse::<u32>())?);
    }
    println!("{keys} keys of {KEY_BYTES} B, a View for each {PUTS_PER_VIEW} puts");
    println!("| keys | memory | new key | lookup | put of a known one | freeing, per key |");
    println!("|---|---|---|---|---|---|");
    for shape in SHAPES {
        let status = Command::new(std::env::current_exe()?).arg(keys.to_string()).arg(shape).status()?;
        anyhow::ensure!(status.success(), "{shape}: {status}");
    }
    Ok(())
}

fn measure(keys: usize, shape: &str, lookups: u32) -> anyhow::Result<()> {
    let shuffled = shuffled(if shape == "pods" { keys } else { 0 });
    let key = |number: usize| -> [u8; KEY_BYTES] {
        match shape {
            "ascending" => numbered(number as u64),
            "pods" => revd_bench::key(shuffled[number]).as_ref().try_into().expect("64 bytes"),
            _ => random_key(number as u64),
        }
    };
    let mut sorted: Vec<_> = if shape == "loaded" { (0..keys).map(key).collect() } else { Vec::new() };
    sorted.sort_unstable();
    let (before, begun) = (resident_bytes()?, cpu_time()?);
    let mut index = KeyIndex::new();
    let mut revision = 1;
    if shape == "loaded" {
        let history = || KeyHistory::created(Revision { main: 1, sub: 0 });
        index = KeyIndex::from_sorted(sorted.iter().map(|key| (KeyParts::from(&key[..]), history())))
            .expect("sorted keys");
    } else {
        let mut view = index.share();
        put_all(&mut index, (0..keys).map(key), &mut revision, &mut view);
    }
    let put = cpu_time()? - begun;
    let memory = resident_bytes()? - before;
    let chosen = || {
        let mut random = Random::new(7);
        (0..keys).map(move |_| key(below(&mut random, keys)))
    };
    let making = timed(|| chosen().for_each(|key| _ = black_box(key)))?;
    let root = index.root();
    let look_up = || chosen().for_each(|key| _ = black_box(root.get(&key, i64::MAX)));
    let looking = timed(|| (0..lookups).for_each(|_| look_up()))?;
    let mut view = index.share();
    let puts = timed(|| put_all(&mut index, chosen(), &mut revision, &mut view))?;
    // As compactions leave it: one change of each key. A View of before holds what was replaced.
    (0..keys).for_each(|number| index.compact_key(&key(number), revision));
    let old = index.share();
    drop(view);
    for key in (0..keys).map(key) {
        index.put(&key, Revision { main: revision + 1, sub: 0 });
    }
    drop(old);
    let freeing = timed(|| {
        _ = index.share(); // looks for what the one before has left
        drop(index.take_unneeded());
    })?;
    let each = |time: Duration| time.as_nanos() / keys as u128;
    println!(
        "| {shape} | {} B | {} ns | {} ns | {} ns | {} ns |",
        memory / keys as u64,
        each(put.saturating_sub(if shape == "loaded" { Duration::ZERO } else { making })),
        each((looking / lookups.max(1)).saturating_sub(making)),
        each(puts.saturating_sub(making)),
        each(freeing),
    );
    Ok(())
}

fn put_all(
    index: &mut KeyIndex,
    keys: impl Iterator<Item = [u8; KEY_BYTES]>,
    revision: &mut i64,
    view: &mut SharedIndex,
) {
    for (number, key) in (1..).zip(keys) {
        *revision += 1;
        index.put(&key, Revision { main: *revision, sub: 0 });
        if number % PUTS_PER_VIEW == 0 {
            *view = index.share();
            drop(index.take_unneeded());
        }
    }
}

/// Numbers in no order.
fn shuffled(count: usize) -> Vec<u64> {
    let (mut random, mut all) = (Random::new(3), (0..count as u64).collect::<Vec<_>>());
    (1..count).for_each(|at| all.swap(at, below(&mut random, at + 1)));
    all
}

fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).expect("below a length")
}

fn timed(work: impl FnOnce()) -> anyhow::Result<Duration> {
    let begun = cpu_time()?;
    work();
    Ok(cpu_time()? - begun)
}

/// Letters that nothing can be said about.
fn random_key(number: u64) -> [u8; KEY_BYTES] {
    let (mut random, mut key) = (Random::new(number.wrapping_mul(0x5851_F42D_4C95_7F2D)), [0; KEY_BYTES]);
    for part in key.chunks_exact_mut(8) {
        let letters = random.number().to_le_bytes();
        part.iter_mut().zip(letters).for_each(|(place, letter)| *place = b'a' + letter % 16);
    }
    key
}

fn numbered(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"/registry/events/default/key-00000000000000000000000000000000000";
    let mut rest = number;
    for place in key.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *place = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
    }
    key
}

/// Memory of this process.
fn resident_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    Ok(text.split(' ').nth(1).unwrap_or("0").parse::<u64>()? * 4_096)
}

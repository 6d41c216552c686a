//! Style as a test: what docs/STYLE.md says and a compiler does not.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::path::{Path, PathBuf};

mod comments;
mod figures;

mod docs;
mod layers;
mod planted;

mod imports;
mod lexer;

/// Lines of a file, tests inside it included.
const FILE_LINES_MAX: usize = 600;
/// Lines of a function; clippy counts code lines, this counts all.
const FUNCTION_LINES_MAX: usize = 90;

/// Columns of a line that is a comment.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Files that may talk to the runtime: the loops, and what they carry things out with.
const MAY_USE_GLOMMIO: &[&str] = &[
    "server/src/boot/mod.rs",
    "server/src/boot/runtime.rs",
    "server/src/boot/wiring.rs",
    "server/src/cores/edge.rs",
    "server/src/cores/log.rs",
    "server/src/cores/state.rs",
    "server/src/disk/segments.rs",
    "server/src/duties/corruption_checks.rs",
    "server/src/duties/reserve.rs",
    "server/src/net/connection.rs",
    "server/src/net/intake.rs",
    "server/src/net/listen.rs",
    "server/src/net/mod.rs",
    "server/src/net/socket.rs",
    "server/src/peer/accept.rs",
    "server/src/peer/dial.rs",
    "server/src/peer/link.rs",
    "server/src/peer/receiving.rs",
    "server/src/peer/states.rs",
    "server/src/peer/mod.rs",
    "server/src/peer/shared.rs",
    "server/src/peer/transport.rs",
    "server/src/queues/mailbox.rs",
    "server/src/queues/sleep.rs",
    "server/tests/log_failures.rs",
    "server/tests/log_segments.rs",
    "server/tests/peers.rs",
    "server/tests/runtime.rs",
    "server/tests/states.rs",
    "server/tests/state_core.rs",
    "server/tests/wal_crash.rs",
];

/// Files that may hold unsafe code.
const MAY_USE_UNSAFE: &[&str] = &[
    "engine/src/disk/mmap.rs",
    "engine/src/mvcc/key_history.rs",
    "engine/src/mvcc/key_index/index.rs",
    "engine/src/mvcc/key_index/node.rs",
    "engine/src/mvcc/key_index/node_box.rs",
    "engine/src/mvcc/key_index/shares.rs",
    "engine/src/mvcc/tail_chunk.rs",
    "engine/src/prefetch.rs",
    "server/src/disk/unreadable.rs",
    "server/src/memory.rs",
    "server/src/net/listen.rs",
    "server/src/threads.rs",
];

/// Modules of the server that know nothing of what a member is, but for its bounds and how its URLs
/// are written.
const BESIDE_THE_MEMBER: &[&str] = &["clock", "config", "limits", "memory", "observe", "queues", "version"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every Rust file of ours: its path from the root, and its text.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["engine", "server", "proto", "bench", "loadgen", "checker", "sim", "mutants"]
            .iter()
            .map(|folder| root().join(folder))
            .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                found.push((name, std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    found.sort();
    assert!(found.len() > 80, "only {} files", found.len());
    found
}

fn assert_none(problems: &[String], rule: &str) {
    assert!(problems.is_empty(), "{rule}:\n{}", problems.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    let without = sources().into_iter().filter(|(_, text)| !text.starts_with("//! ")).map(|(name, _)| name);
    assert_none(&without.collect::<Vec<_>>(), "the first line of a file is a //! sentence");
}

/// The time of day may jump: nothing that is decided goes by it, but the end of certificates and
/// signed tokens, which are made elsewhere.
#[test]
fn the_wall_clock_is_for_logs_and_ids_alone() {
    const USERS: [&str; 6] = [
        "server/src/api/auth/jwt.rs",
        "server/src/api/cluster.rs",
        "server/src/clock.rs",
        "server/src/net/tls/today.rs",
        "server/src/observe/log.rs",
        "server/src/peer/probes.rs",
    ];
    let is_shipped = |name: &str| {
        ["server/src/", "server/member/src/", "engine/src/"].iter().any(|at| name.starts_with(at))
    };
    let tells_time = |text: &str| ["SystemTime", "clock::wall"].iter().any(|word| text.contains(word));
    let users = sources()
        .into_iter()
        .filter(|(name, text)| is_shipped(name) && tells_time(lexer::without_tests(text)));
    assert_eq!(users.map(|(name, _)| name).collect::<Vec<_>>(), USERS);
}

/// Where functions begin, and their lines.
fn function_lengths(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let length = |(start, line): (usize, &&str)| {
        let indent = line.len() - line.trim_start().len();
        let mut head = line.trim_start();
        for word in ["pub ", "pub(crate) ", "pub(super) ", "const ", "async "] {
            head = head.trim_start_matches(word);
        }
        if !head.starts_with("fn ") || line.ends_with(';') {
            return None;
        }
        let close = format!("{}}}", " ".repeat(indent));
        let more = lines[start..].iter().position(|line| *line == close).unwrap_or(0);
        Some((start + 1, more + 1))
    };
    lines.iter().enumerate().filter_map(length).collect()
}

#[test]
fn files_and_functions_are_short() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            problems.push(format!("{name} has {lines} lines, at most {FILE_LINES_MAX}"));
        }
        let long = function_lengths(&text).into_iter().filter(|(_, lines)| *lines > FUNCTION_LINES_MAX);
        problems.extend(long.map(|(start, lines)| format!("{name}:{start}: a function of {lines} lines")));
    }
    assert_none(&problems, "short files and functions");
}

#[test]
fn source_is_plain_text_without_loose_ends() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let marks = [concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X:")];
        for (number, line) in text.lines().enumerate() {
            if !line.is_ascii() || marks.iter().any(|mark| line.contains(mark)) {
                problems.push(format!("{name}:{}: {line}", number + 1));
            }
        }
    }
    assert_none(&problems, "ASCII only, nothing left for later");
}

#[test]
fn comments_are_narrow() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let is_wide = |line: &&str| line.trim_start().starts_with("//") && line.len() > COMMENT_COLUMNS_MAX;
        problems.extend(text.lines().filter(is_wide).map(|line| format!("{name}: {line}")));
    }
    assert_none(&problems, "comments of at most 100 columns");
}

#[test]
fn only_loops_know_the_runtime() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let uses = code.any(|line| line.contains(concat!("glommio", "::")));
        if uses && !MAY_USE_GLOMMIO.contains(&name.as_str()) {
            problems.push(name);
        }
    }
    assert_none(&problems, "only the files listed in this test may use glommio");
    let names: Vec<String> = sources().into_iter().map(|(name, _)| name).collect();
    for listed in MAY_USE_GLOMMIO.iter().chain(MAY_USE_UNSAFE) {
        assert!(names.iter().any(|name| name == listed), "{listed} is listed here but not there any more");
    }
}

/// A task that is ready again at once keeps its core from looking at sockets: see `queues/turn.rs`.
#[test]
fn turns_end_by_giving_way() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let is_ours = name.starts_with("server/src") || name.starts_with("server/member/src");
        let is_allowed = !is_ours || name == "server/src/cores/edge.rs";
        if !is_allowed && text.contains(concat!("yield", "_now")) {
            problems.push(name);
        }
    }
    assert_none(&problems, "turns of a core end with `queues::turn::give_way`");
}

#[test]
fn unsafe_code_is_where_it_is_expected() {
    let word = concat!("uns", "afe");
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let opens = [format!("{word} {{"), format!("{word} fn"), format!("{word} impl")];
        if code.any(|line| opens.iter().any(|open| line.contains(open)))
            && !MAY_USE_UNSAFE.contains(&name.as_str())
        {
            problems.push(name);
        }
    }
    assert_none(&problems, "only the files listed in this test may hold such code");
}

/// Deciding code can be simulated only as long as nothing in it waits, asks for
/// the time or talks to a socket.
#[test]
fn the_member_links_no_runtime_and_no_transport() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut tree = std::process::Command::new(cargo);
    tree.args(["tree", "-p", "revd-member", "--edges", "normal,build", "--prefix", "none", "--offline"]);
    let output = tree.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let crates: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains(&"raft"), "{crates:?}");
    let is_forbidden = |name: &&&str| {
        let words = ["glommio", "tonic", "tokio", "hyper", "h2", "revd-http2", "http", "rustls"];
        words.iter().any(|word| **name == *word || name.starts_with(&format!("{word}-")))
    };
    assert_eq!(crates.iter().find(is_forbidden), None);
}

/// Words of the standard library that ask the system for something.
#[test]
fn what_decides_asks_the_system_for_nothing() {
    let words = ["std::fs", "std::net", "std::process", "std::thread", "std::env", "SystemTime", "Instant"];
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
        if name.starts_with("server/member/src/") {
            let found = words.into_iter().filter(|word| code.contains(word));
            problems.extend(found.map(|word| format!("{name}: {word}")));
        }
    }
    assert_none(&problems, "what decides is given time and bytes, and asks for neither");
}

/// The fuzz targets are a workspace of their own, which CI does not build.
#[test]
fn the_fuzzer_has_the_crates_that_its_targets_use() {
    let manifest = std::fs::read_to_string(root().join("server/fuzz/Cargo.toml")).unwrap();
    let targets = std::fs::read_to_string(root().join("server/tests/fuzz/targets.rs")).unwrap();
    let used = targets.lines().filter_map(|line| line.strip_prefix("use revd")?.split("::").next());
    let used: std::collections::BTreeSet<String> =
        used.map(|rest| format!("revd{}", rest.replace('_', "-"))).collect();
    assert!(used.len() > 3, "{used:?}");
    let missing = used.into_iter().filter(|name| !manifest.contains(&format!("\n{name} = ")));
    assert_none(&missing.collect::<Vec<_>>(), "server/fuzz/Cargo.toml lacks crates");
}

#[test]
fn leaves_know_nothing_of_the_member() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let Some(inside) = name.strip_prefix("server/src/") else { continue };
        let module = inside.split(['/', '.']).next().unwrap();
        let uses = text.lines().filter(|line| line.contains("revd_member::"));
        let is_leaf = |line: &&str| {
            ["limits", "urls"].iter().any(|leaf| line.contains(&format!("revd_member::{leaf}")))
        };
        let uses = uses.filter(|line| !is_leaf(line));
        if BESIDE_THE_MEMBER.contains(&module) {
            problems.extend(uses.map(|line| format!("{name}: {line}")));
        }
    }
    assert_none(&problems, "leaves know nothing of the member");
}

#[test]
fn the_engine_stays_small_inside() {
    let manifest = std::fs::read_to_string(root().join("engine/Cargo.toml")).unwrap();
    let section = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let dependencies: Vec<&str> = section.lines().filter(|line| line.contains('=')).collect();
    assert!(dependencies.len() <= 5, "{dependencies:?}");
}

#[test]
fn every_dependency_says_why_it_is_there() {
    let mut problems = Vec::new();
    for folder in [
        "engine",
        "server",
        "server/member",
        "server/fuzz",
        "proto",
        "proto/http2",
        "proto/clients",
        "bench",
        "loadgen",
        "mutants",
    ] {
        let path = root().join(folder).join("Cargo.toml");
        let manifest = std::fs::read_to_string(&path).unwrap();
        let mut inside = false;
        for line in manifest.lines() {
            if line.starts_with('[') {
                inside = line.contains("dependencies");
            } else if inside && line.contains(" = ") && !line.contains(" # ") {
                problems.push(format!("{folder}: {line}"));
            }
        }
    }
    assert_none(&problems, "a reason behind each dependency");
}

//! Runs the target this program is named after.

#![no_main]

#[path = "../../tests/fuzz/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let name = env!("CARGO_BIN_NAME");
    let target = targets::TARGETS.iter().find(|target| target.name == name).expect("a program is named after a target");
    (target.run)(bytes);
});

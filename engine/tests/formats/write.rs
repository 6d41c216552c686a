//! Writes a file as the commit does in which this is built, for `write.sh`: the script, what it
//! becomes, and the contents as that commit reads them.

mod contents;
mod script;

use revd_engine::mvcc::Store;

/// Methods of a store that not all versions have: those that have them prefer their own.
#[allow(dead_code, reason = "a version that has all of them needs none of these")]
trait Missing {
    fn save_index_in_steps_of(&mut self, _keys: u64) {}
    fn compact_as_large(&mut self, _records: u64, _hashed: u64) {}
}
impl Missing for Store {}

fn main() {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [script, file, text] = &paths[..] else { panic!("script, file and contents are not named") };
    let knobs = script::Knobs {
        steps: |store, keys| store.save_index_in_steps_of(keys),
        large: |store, records| store.compact_as_large(records, records),
    };
    let mut session = script::Session::open(file.into(), knobs);
    session.run(&std::fs::read_to_string(script).unwrap(), &mut |_| {});
    // As after a kill: nothing is written when a store is dropped, or opened.
    drop(session);
    let mut session = script::Session::open(file.into(), knobs);
    std::fs::write(text, contents::contents(session.store())).unwrap();
}

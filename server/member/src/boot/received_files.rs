//! Files of a state that another member sends, on its way to becoming the tree file.
//!
//! ```text
//! receiving.tmp --whole and synced--> received.revd --the log begins again behind it--> tree.revd
//! ```
//!
//! Each arrow is a rename, and durable when it returns. Which of them a start finds done, and how
//! it goes on, is decided in `recovery`.

use std::io::{self, ErrorKind};

use crate::files::Files;

/// The tree file.
pub const TREE: &str = "tree.revd";
/// A state that is whole.
pub const RECEIVED: &str = "received.revd";
/// A part of a state.
pub const RECEIVING: &str = "receiving.tmp";

/// The state that is being received is whole and synced.
///
/// # Errors
/// When the system refuses.
pub fn keep(files: &impl Files) -> io::Result<()> {
    files.rename(RECEIVING, RECEIVED)?;
    files.sync()
}

/// The state that was received is the tree file from now on.
///
/// # Errors
/// When the system refuses.
pub fn install(files: &impl Files) -> io::Result<()> {
    files.rename(RECEIVED, TREE)?;
    files.sync()
}

/// Removes the state that was received, and what there is of another one.
///
/// # Errors
/// When the system refuses.
pub fn forget(files: &impl Files) -> io::Result<()> {
    for name in [RECEIVING, RECEIVED] {
        match files.remove(name) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // Where nothing is left, a process that died may have installed it and not have lived to sync
    // the names.
    files.sync()
}

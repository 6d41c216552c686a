//! Memory that many want: what each one holds is counted, and nobody can take all of it.
//!
//! A share may hold as much as it leaves free (the dynamic threshold of packet switches): one alone
//! gets a half, eight that take what they can get a ninth each, and the last ninth is there for the
//! next one that comes. However many they are, a little is left.

mod room;
mod share;

pub use room::Room;
pub use share::{Budget, Hold, NoRoom, Patience, Share};

//! Memory budgets: what each connection holds is counted, and no connection can take all of it.
//!
//! A share may hold as much as it leaves free (the dynamic threshold of packet switches): one alone
//! gets a half; eight that take as much as they can get a ninth each, and the last ninth is left
//! for the next share. However many there are, a little is left.

mod room;
mod share;

pub use room::Room;
pub use share::{Budget, Hold, NoRoom, Patience, Share};

//! Chores of a member: each decides, when asked at a steady pace, which command to propose. The loops that ask are in
//! `cores`.

pub mod auto_compact;
